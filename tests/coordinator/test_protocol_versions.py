"""An earlier protocol's client at today's coordinator."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shoal.core.protocol.message import Ack
from shoal.wire import codec
from shoal_coordinator.api import authentication
from tests.support.coordinator import Inside
from tests.support.scenario import by_hand, set_up


@pytest.fixture
def tomorrow(monkeypatch: pytest.MonkeyPatch) -> tuple[int, ...]:
    """A release that speaks one protocol more."""
    spoken = (*codec.PROTOCOLS, codec.PROTOCOLS[-1] + 1)
    for module in (codec, authentication):
        monkeypatch.setattr(module, "PROTOCOLS", spoken)
    return spoken


def said(answer: Any) -> int:
    """The protocol in which a frame is written."""
    length = int.from_bytes(answer.content[:4], "big")
    return int(json.loads(answer.content[4 : 4 + length])["shoal"])


def test_a_client_of_the_protocol_before_is_answered_in_it(coordinator: Inside, tomorrow: tuple[int, ...]) -> None:
    before, newest = tomorrow[-2:]
    token = coordinator.token()
    wanted = {"token": token, "name": "old", "info": {}, "protocols": [before]}
    enrolled = coordinator.request("POST", "/api/v1/enrol", json=wanted, headers={"Idempotency-Key": "k" * 32})
    assert (enrolled.status_code, enrolled.json()["protocol"]) == (201, before)
    stage = set_up(coordinator)
    for protocol in (before, newest):
        node, task = stage.nodes[protocol - before], stage.tasks[f"n{protocol - before}"]
        node.client.headers["Shoal-Protocol"] = str(protocol)
        assert node.ask("POST", "/hello", json={"protocols": [protocol]}).json()["protocol"] == protocol
        polled = node.ask("GET", "/work", params={"wait_s": 0})
        assert said(polled) == protocol
        head, payload = stage.frame(node=node.node, shoal=protocol)
        answer = node.once("POST", "/jobs/main/reports", content=head + payload)
        assert answer is not None
        assert said(answer) == protocol
        assert codec.decode(answer.content).message == Ack(task.id, True)
    stage.close()


def test_a_client_of_a_protocol_that_is_too_old_is_told_so(coordinator: Inside) -> None:
    node = by_hand(coordinator, "n0")
    node.client.headers["Shoal-Protocol"] = "0"
    assert node.ask("GET", "/work", params={"wait_s": 0}).status_code == 426
    node.client.close()
