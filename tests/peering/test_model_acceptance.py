"""An edge client that is away declines models of far greater loss, and begins nothing with who sends such again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.core.model.tree import Tree, scale
from shoal.core.protocol.peer_message import (
    ExchangeAbort,
    ExchangeAccept,
    ExchangeDeny,
    ExchangeGrant,
    ExchangeOffer,
    ExchangeRequest,
)
from shoal.jobs.spec import parse_job
from shoal.peering.host.model_acceptance import LATE
from shoal.runtime.threads import SerialExecutor
from shoal.sim.hosts.toy_models import ToyLearner
from shoal_edge_client.settings import EdgeSettings
from shoal_edge_client.training.trainer_backend import trainer_backend
from tests.peer.scenario import body_of, ref_of
from tests.peering.scenario import Threaded
from tests.peering.test_refusals import JOB, EdgePeerClient, Still, alone
from tests.support.coordinator import Server
from tests.support.waiting import until

RIGHT = ToyLearner(1).init(0)


class Knowing(Still):
    """Its loss is how far the model is from the one that is right."""

    def evaluate(self) -> dict[str, float]:
        off = float(np.linalg.norm(self._model["w"] - RIGHT["w"]))
        return {"eval/loss": off, "eval/examples": float(self._number)}


def said(client: EdgePeerClient, number: int, body: bytes) -> tuple[type, Any]:
    """Return the answer to `b`'s model, or to its request if the model may not come."""
    xid = ("b", client.process_number, number)
    _, slot = asyncio.run(client.send(ExchangeRequest("b", xid)))
    if not isinstance(slot[0], ExchangeGrant):
        return type(slot[0]), slot[0]
    status, answer = asyncio.run(client.send(ExchangeOffer("b", xid, 2.0, 1e9, ref_of(body), {"b": 1}), blobs=body))
    assert status == 200
    return type(answer[0]), answer[0]


def test_a_model_of_minus_three_times_is_declined_and_its_sender_in_the_end_not_asked(
    server: Server, threaded: Callable[..., Threaded], tmp_path: Path
) -> None:
    victim = alone(server, threaded, tmp_path, Knowing, loss_ratio_max=1.5)
    victim.hold.unlink()  # local rounds go on, and teach nothing
    gossip = victim.pump.peer.gossip
    assert gossip is not None
    poison, fine = body_of(scale(gossip.me.model, -3.0)), body_of(gossip.me.model)
    before, client = victim.model, victim.client()
    for count in (1, 2, 3):
        assert victim.status()["quarantine"] == []
        kind, never = said(client, count, poison)
        assert kind is ExchangeAbort
        assert "its loss here is" in never.why
        assert victim.status()["refused"] == {"peer.loss": count}
    assert victim.model == before, "no honest model has changed"
    assert victim.status()["quarantine"] == ["b"]
    assert said(client, 4, fine)[0] is ExchangeDeny
    assert "b" not in victim.group.liveness.live.nodes

    def told() -> Any:
        return next(row for row in server.get(f"/jobs/{JOB}/peers")["peers"] if row["name"] == "a")

    until("the coordinator to know", lambda: told()["quarantine"] == ["b"])
    assert told()["refused"] == {"peer.loss": 3}


def test_what_is_as_good_as_its_own_is_mixed_once_it_can_be_measured(
    server: Server, threaded: Callable[..., Threaded], tmp_path: Path
) -> None:
    victim = alone(server, threaded, tmp_path, Knowing, loss_ratio_max=1.5, exchange_timeout_s=0.5)
    gossip = victim.pump.peer.gossip
    assert gossip is not None
    kind, never = said(victim.client(), 1, body_of(gossip.me.model))
    assert (kind, never.why) == (ExchangeAbort, LATE), "a local round is being made, by the only learner that there is"
    victim.hold.unlink()
    body = body_of(scale(gossip.me.model, 1.01))
    voices = iter(victim.client, None)
    until("it to be measured", lambda: said(next(voices), 1, body)[0] is ExchangeAccept)
    assert victim.status()["refused"] == {}


@pytest.mark.usefixtures("processes")
def test_a_training_process_has_another_beside_it_that_judges(tmp_path: Path) -> None:
    """So a model is measured while a local round is made; and the process starts only for the first measurement."""
    learner = str(Path(__file__).parents[2] / "tests/support/learners.py:counting_with_loss")
    settings = EdgeSettings(learner=learner, peer_listen="127.0.0.1:0")
    apart = trainer_backend(settings, None, tmp_path / "training")
    try:
        judge = apart.evaluator(parse_job({"name": JOB}), SerialExecutor("never used"))
        assert apart._evaluation.starts == 0  # type: ignore[attr-defined]
        model = Tree.of({"w": np.array([3.0, 4.0], np.float32)})
        assert asyncio.run(judge(model))["eval/loss"] == 5.0
        assert apart._evaluation.starts == 1  # type: ignore[attr-defined]
        assert apart.training.starts == 0  # type: ignore[attr-defined]
    finally:
        apart.close()
