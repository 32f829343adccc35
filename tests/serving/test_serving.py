"""Predictions over HTTP, and the label that a served model follows."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import httpx
import numpy as np
import pytest
import torch
from starlette.types import Receive, Scope, Send
from torch import Tensor, nn

from shoal.client.api import CoordinatorApi, DownloadBody
from shoal.core.errors import InvalidJob, InvalidPayload, Unreachable
from shoal.core.model.tree import Tree
from shoal.learn import GrowingLearner, TorchLearner
from shoal.runtime.http.server.exchange import SCOPE_KEY, HttpExchange
from shoal.serving.model_follower import ModelFollower
from shoal.serving.prediction_app import BODY_BYTES_MAX, PredictionLimits, create_app
from shoal.serving.served_model import ServedModel, ServedVersion
from shoal.wire.payload import payload_pieces
from tests.support.learners import VectorLearner

DATA = torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)
ROWS = [[1, 2], [3, 4]]


class Sums(nn.Module):
    """Scores of two classes, by weights that are all `value`; dropout would show training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(2, 2, bias=False), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.dropout(self.linear(x))
        return scores


def model(value: float) -> Tree:
    return Tree.of({"linear.weight": torch.full((2, 2), value).numpy()})


def served(value: float = 1.0) -> ServedModel:
    made = ServedModel(TorchLearner(Sums, DATA, device="cpu"))
    made.load(model(value), ServedVersion("digits", 3))
    return made


class Coordinator:
    """A coordinator's answers to a follower. `labels`: versions by label; `down`: it does not answer."""

    def __init__(self, **labels: int) -> None:
        self.labels, self.down = labels, False

    def get(self, path: str) -> dict[str, Any]:
        if self.down:
            raise Unreachable("no answer")
        return {"name": "digits", "labels": self.labels}

    @contextmanager
    def download(self, path: str) -> Iterator[DownloadBody]:
        data = b"".join(payload_pieces({"model": model(float(path.rpartition("/")[2]))}))
        yield DownloadBody(len(data), "", iter([data]))


def ask(of: ServedModel, content: bytes, token: str = "", **headers: str) -> httpx.Response:
    """Send a request to the server's application, as one that listens on this machine alone."""
    limits = PredictionLimits(create_app(of), "127.0.0.1", token)

    async def with_exchange(scope: Scope, receive: Receive, send: Send) -> None:
        await limits({**scope, SCOPE_KEY: HttpExchange()}, receive, send)

    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(app=with_exchange)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.post("/predict", content=content, headers=headers)

    return asyncio.run(asked())


def test_predictions_are_those_of_the_module_in_evaluation_mode() -> None:
    answer = ask(served(), b'{"inputs": [[1, 2], [3, 4]]}')
    assert answer.status_code == 200
    assert answer.json() == {"outputs": [[3.0, 3.0], [7.0, 7.0]], "job": "digits", "version": 3}
    assert served(2.0).answer({"x": ROWS})[0] == [[6.0, 6.0], [14.0, 14.0]]


@pytest.mark.parametrize(
    ("content", "headers", "status", "code"),
    [
        (b'{"inputs": [[1, 2], [3]]}', {}, 422, "predict.inputs"),
        (b'{"inputs": ["a"]}', {}, 422, "predict.inputs"),
        (b'{"inputs": []}', {}, 422, "predict.inputs"),
        (b'{"inputs": [[1e999, 1]]}', {}, 422, "predict.inputs"),
        (b'{"inputs": [[1, 2]], "dtype": "object"}', {}, 422, "predict.dtype"),
        (b"[" * 100_000, {}, 422, "predict.inputs"),
        (b'{"inputs": [[1, 2, 3]]}', {}, 422, "learner.failed"),
        (b'{"inputs": [[3e38, 3e38]]}', {}, 422, "predict.not-finite"),
        (b" " * (BODY_BYTES_MAX + 1), {}, 413, "body.too-large"),
        (b'{"inputs": [[1, 2]]}', {"host": "elsewhere.example"}, 421, "host.unknown"),
        (b'{"inputs": [[1, 2]]}', {"authorization": "Bearer wrong"}, 401, "auth.refused"),
    ],
)
def test_requests_that_do_not_fit_are_refused(content: bytes, headers: dict[str, str], status: int, code: str) -> None:
    answer = ask(served(), content, "secret" if "authorization" in headers else "", **headers)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_a_token_opens() -> None:
    assert ask(served(), b'{"inputs": [[1, 2]]}', "secret", authorization="Bearer secret").status_code == 200


def test_a_label_is_followed_forth_and_back() -> None:
    at, fake = served(), Coordinator(production=1)
    follower = ModelFollower(at, cast("CoordinatorApi", fake), "digits", "production")
    found = []
    for version in (1, 5, 1):
        fake.labels["production"] = version
        follower.load()
        found.append((at.version, at.answer([[1, 0]])[0]))
    assert found == [(ServedVersion("digits", one), [[float(one)] * 2]) for one in (1, 5, 1)]


def test_the_version_before_answers_while_the_label_cannot_be_followed() -> None:
    at, fake = served(), Coordinator(production=4)
    follower = ModelFollower(at, cast("CoordinatorApi", fake), "digits", "production")
    follower.load()
    for change in ({"down": True}, {"labels": {}, "down": False}):
        vars(fake).update(change)
        follower.refresh()
        assert at.answer([[1, 0]]) == ([[4.0, 4.0]], ServedVersion("digits", 4))
    fake.labels = {"production": 5}
    follower.refresh()
    assert at.version == ServedVersion("digits", 5)


def test_a_model_that_does_not_fit_leaves_the_one_before() -> None:
    at = served()
    with pytest.raises(InvalidPayload):
        at.load(Tree.of({"linear.weight": torch.ones(2, 3).numpy()}), ServedVersion("digits", 4))
    assert at.answer(ROWS) == ([[3.0, 3.0], [7.0, 7.0]], ServedVersion("digits", 3))


def of_stage(stage: int) -> TorchLearner:
    """Return a learner with two hidden units, and then with three."""
    layers = {"hidden": nn.Linear(2, 2 + stage), "relu": nn.ReLU(), "scores": nn.Linear(2 + stage, 2)}
    return TorchLearner(lambda: nn.Sequential(OrderedDict(layers)), DATA, device="cpu")


def test_a_growing_learner_answers_by_the_stage_of_the_model() -> None:
    at, alone = ServedModel(GrowingLearner(of_stage, 2)), [of_stage(0), of_stage(1)]
    for version, stage in enumerate((0, 1, 0)):
        at.load(alone[stage].model(), ServedVersion("digits", version))
        assert at.answer(ROWS)[0] == alone[stage].predict(np.float32(ROWS)).tolist()
    with pytest.raises(InvalidPayload, match="the network of any stage"):
        at.load(model(1.0), ServedVersion("digits", 3))
    assert at.answer(ROWS) == (alone[0].predict(np.float32(ROWS)).tolist(), ServedVersion("digits", 2))


def test_a_learner_that_does_not_predict_is_named() -> None:
    with pytest.raises(InvalidJob, match="a VectorLearner does not predict"):
        ServedModel(VectorLearner())
