"""Levels of a network with exits that answer over HTTP."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx
import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send

from shoal.core.errors import InvalidJob, Refused, ShoalError
from shoal.core.exits.cascade_level import CascadeAnswer, CascadeEvent, EscalationFailed
from shoal.core.exits.packed_bits import PackedFeatures
from shoal.learn.exits import answer, exit_learner
from shoal.learn.exits.level_answers import LevelAnswers
from shoal.runtime.http.server.exchange import SCOPE_KEY, HttpExchange
from shoal.runtime.http.server.serving import listen
from shoal.serving.cascade_pump import AskAbove, CascadePump
from shoal.serving.inference import chosen_thresholds, here, infer
from shoal.serving.level_above import LevelAbove
from shoal.serving.level_app import create_level_app
from shoal.serving.prediction_app import BODY_BYTES_MAX, PredictionLimits, serve_predictions
from shoal.serving.served_level import ServedLevel, exit_network
from shoal.serving.served_model import ServedModel, ServedVersion
from shoal.wire.cascade_codec import EXAMPLES_MAX, encode_features, read_answer
from tests.learn.exit_networks import small
from tests.serving.levels import LABELS, VIEWS, learner, middle, model, pump, served


def ask(app: Starlette, path: str, content: bytes = b"", json: Any = None) -> httpx.Response:
    """Send a request to the application of a level, as one that listens on this machine with a token."""
    limits = PredictionLimits(app, "127.0.0.1", "secret")

    async def with_exchange(scope: Scope, receive: Receive, send: Send) -> None:
        await limits({**scope, SCOPE_KEY: HttpExchange()}, receive, send)

    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(app=with_exchange)
        headers = {"Authorization": "Bearer secret"}
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as client:
            return await client.post(path, json=json) if json is not None else await client.post(path, content=content)

    return asyncio.run(asked())


def over_http(upper: CascadePump) -> AskAbove:
    """A level above, asked by its application without a socket."""
    app = create_level_app(upper)

    def asked(features: PackedFeatures, model: str) -> CascadeAnswer:
        response = ask(app, "/features", encode_features(model, upper.level.number, features))
        if response.status_code != 200:
            raise Refused(response.json()["detail"], code=response.json()["code"])
        return read_answer(response.json())

    return asked


def cascade(*models: ServedModel) -> list[CascadePump]:
    """Device, edge and cloud with these models."""
    cloud = pump(models[2], "cloud")
    edge = pump(models[1], "edge", over_http(cloud))
    return [pump(models[0], "device", over_http(edge)), edge, cloud]


def expected() -> LevelAnswers:
    """The answers of the network in one process."""
    with served().turn() as own:
        return answer(exit_network(own), [VIEWS], middle())


def predicted(at: CascadePump) -> Any:
    response = ask(create_level_app(at), "/predict", json={"inputs": VIEWS.tolist()})
    assert response.status_code == 200
    return response.json()


def test_levels_that_are_served_answer_as_the_network_in_one_process() -> None:
    levels, right = cascade(served(), served(), served()), expected()
    found = predicted(levels[0])
    assert found["classes"] == right.classes.tolist()
    assert found["answered_by"] == [("device", "edge", "cloud")[number] for number in right.exits]
    assert set(found["answered_by"]) == {"device", "edge", "cloud"}
    assert not any(found["degraded"])
    assert (found["job"], found["version"]) == ("digits", 0)
    scores = 40 * 3 * 4 * 4  # of three devices, which one process computes
    assert sum(one.machine.counts.sent_bytes for one in levels) == right.sent - scores


def test_features_of_another_version_are_not_answered_until_both_levels_follow() -> None:
    models = [served(1), served(), served()]
    found = predicted(cascade(*models)[0])
    assert set(found["answered_by"]) == {"device"}
    assert any(found["degraded"])
    assert found["version"] == 1
    models[0].load(model(0), ServedVersion("digits", 0))
    assert predicted(cascade(*models)[0])["classes"] == expected().classes.tolist()


def test_a_level_answers_itself_when_the_time_is_over() -> None:
    asked, over = threading.Event(), threading.Event()

    def silent(features: PackedFeatures, model: str) -> CascadeAnswer:
        asked.set()
        over.wait()
        raise ShoalError("too late")

    try:
        found = predicted(pump(served(), "device", silent, timeout_s=0))
    finally:
        over.set()
    assert asked.wait(60)
    assert set(found["answered_by"]) == {"device"}
    assert found["degraded"].count(True) == (expected().exits > 0).sum()


def test_a_refusal_from_above_does_not_wait_for_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(features: PackedFeatures, model: str) -> CascadeAnswer:
        raise Refused("another version")

    device, events = pump(served(), "device", refusing), list[CascadeEvent]()
    monkeypatch.setattr(device, "_feed", events.append)
    asyncio.run(device._escalate("0", PackedFeatures((8,), ()), ""))
    assert events == [EscalationFailed("0")]


def features(parts: int = 3, level: int = 1, model: str | None = None) -> bytes:
    """Features of two examples at the devices, of the model that the edge has."""
    packed = PackedFeatures((3, 2, 2), (np.zeros((2, 2), np.uint8),) * parts)
    return encode_features(served().digest if model is None else model, level, packed)


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        (features(model="0" * 64), 409, "exits.version"),
        (features(model=""), 409, "exits.version"),
        (features(level=2), 409, "exits.level"),
        (features(parts=2), 422, "payload.bits"),
        (features()[:-1], 422, "payload.bits"),
        (b"abc", 422, "head.length"),
        (bytes(BODY_BYTES_MAX + 1), 413, "body.too-large"),
    ],
    ids=["version", "no version", "level", "parts", "length", "no head", "too long"],
)
def test_features_that_do_not_fit_are_refused(content: bytes, status: int, code: str) -> None:
    edge = create_level_app(cascade(served(), served(), served())[1])
    refused = ask(edge, "/features", content)
    assert (refused.status_code, refused.json()["code"]) == (status, code)
    assert ask(edge, "/features", features()).status_code == 200


def test_a_device_refuses_too_many_examples_and_other_views() -> None:
    device = create_level_app(pump(served(), "device", over_http(pump(served(), "edge"))))
    for inputs, code in (
        ([VIEWS[0].tolist()] * (EXAMPLES_MAX + 1), "predict.inputs"),
        (VIEWS[:, :2].tolist(), "exits.views"),
        ([[1.0]], "exits.views"),
    ):
        refused = ask(device, "/predict", json={"inputs": inputs})
        assert (refused.status_code, refused.json()["code"]) == (422, code)
    assert ask(device, "/features", features()).status_code == 404


def test_a_model_without_that_level_is_refused() -> None:
    with pytest.raises(InvalidJob, match="no level 'fog'"):
        ServedLevel(served(), "fog")
    with pytest.raises(InvalidJob, match="has no exits"):
        exit_network(object())


def test_a_learner_without_held_out_examples_is_refused() -> None:
    own = exit_learner(lambda: small(3, edge=True), (VIEWS, LABELS), device="cpu")
    with pytest.raises(InvalidJob, match="no held-out examples"):
        chosen_thresholds(own)


def test_a_report_counts_the_held_out_examples() -> None:
    own, fractions = learner(), list[float]()
    own.load(model())
    found = asyncio.run(infer(own, here(own, middle()), fractions.append))
    right = expected()
    assert [one.answered for one in found.levels] == [(right.exits == number).sum() for number in range(3)]
    assert found.accuracy == pytest.approx((right.classes == LABELS.numpy()).mean())
    assert found.bytes_per_answer == pytest.approx(right.sent / 40)
    assert fractions == [1.0]


def test_thresholds_are_chosen_on_the_held_out_examples() -> None:
    own = learner()
    own.load(model())
    thresholds = chosen_thresholds(own)
    found = asyncio.run(infer(own, here(own, thresholds), lambda _: None))
    cloud = asyncio.run(infer(own, here(own, (0.0, 0.0)), lambda _: None))
    assert found.accuracy >= cloud.accuracy - 0.005
    assert found.levels[0].answered > 0


def test_a_level_asks_the_one_above_over_a_socket_and_goes_on_without_it() -> None:
    async def scenario() -> list[CascadeAnswer]:
        edge = create_level_app(cascade(served(), served(), served())[1])
        with listen("127.0.0.1", 0) as sock:
            above = LevelAbove(f"http://127.0.0.1:{sock.getsockname()[1]}", "secret", 1, 60)
            device = pump(served(), "device", above.answer)
            async with serve_predictions(edge, sock, "127.0.0.1", "secret"):
                first, _ = await device.ask([VIEWS])
            second, _ = await device.ask([VIEWS])
        return [first, second]

    found, alone = asyncio.run(scenario())
    right = expected()
    assert (found.classes.tolist(), found.exits.tolist()) == (right.classes.tolist(), right.exits.tolist())
    assert alone.degraded.tolist() == (right.exits > 0).tolist()
