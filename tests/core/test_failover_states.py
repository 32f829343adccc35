"""The decisions of each state of a node that may fail over."""

from __future__ import annotations

from math import inf

import pytest

from shoal.core.failover import states
from shoal.core.failover.coordinator_reachability import CoordinatorReachability
from shoal.core.failover.failover import Failover
from shoal.core.failover.states import Facts
from shoal.core.protocol.peer_message import CoordinatorStatus

RULES = Failover(coordinator_timeout_s=15.0, suspicion_s=10.0, min_gossip_s=60.0, open_exchanges_timeout_s=20.0)


def reachability(
    *statuses: CoordinatorStatus, heard_at: float = 0.0, answering_since: float = 0.0
) -> CoordinatorReachability:
    """Return the reachability of a coordinator that answered until `heard_at`."""
    made = CoordinatorReachability("a", RULES.coordinator_timeout_s)
    made.start(0.0)
    made.record_coordinator(answering_since, direct=True)
    made.record_coordinator(heard_at, direct=True)
    for status in statuses:
        made.record_status(status, 16.0)
    return made


def status(node: str, *, hears: bool, term: int = 1) -> CoordinatorStatus:
    """Return a peer's status."""
    return CoordinatorStatus(node, term, hears, False, 0, None)


@pytest.mark.parametrize(("now", "state"), [(14.9, None), (15.0, "suspect")])
def test_a_silent_coordinator_is_suspected(now: float, state: str | None) -> None:
    decision = states.coordinated(reachability(), now)
    assert (decision.action, decision.due) == ("enter" if state else "wait", 15.0)
    assert state is None or decision.state == state


@pytest.mark.parametrize(
    ("statuses", "facts", "now", "action"),
    {
        "a quorum misses it": (["b"], {}, 25.0, "fail over"),
        "the suspicion is young": (["b"], {}, 24.9, "wait"),
        "one node is not a quorum": ([], {}, 25.0, "wait"),
        "without a model": (["b"], {"has_model": False}, 25.0, "wait"),
        "a peer reaches it": (["b", "C"], {}, 25.0, "enter"),
    }.values(),
)
def test_a_suspicious_node_fails_over_with_a_quorum(
    statuses: list[str], facts: dict[str, bool], now: float, action: str
) -> None:
    """A capital: that peer reaches the coordinator, and can relay."""
    said = [status(node, hears=node.isupper(), term=3) for node in statuses]
    decision = states.suspect(Facts(15.0, 17.0, frozenset("bc"), **facts), reachability(*said), RULES, now, quorum=2)
    assert decision.action == action
    assert decision.term == (3 if action == "fail over" else 0)
    if action == "enter":
        assert decision.state == "coordinated"
        assert decision.search is not None
        assert decision.search.is_found


def test_a_suspicious_node_trusts_a_coordinator_that_answers() -> None:
    decision = states.suspect(Facts(15.0), reachability(heard_at=16.0), RULES, 17.0, quorum=2)
    assert (decision.action, decision.state) == ("enter", "coordinated")


@pytest.mark.parametrize(
    ("facts", "heard", "now", "action", "due"),
    {
        "it is silent": ({}, (0.0, 0.0), 80.0, "ping", 85.0),
        "it has answered for long": ({}, (75.0, 65.0), 80.0, "join", 85.0),
        "it has just come back": ({}, (75.0, 75.0), 80.0, "ping", 85.0),
        "away for too short a time": ({"since": 30.0}, (75.0, 65.0), 80.0, "ping", 85.0),
        "asked already": ({"due": 82.0}, (75.0, 65.0), 80.0, "wait", 82.0),
        "it knows": ({"has_task": True}, (75.0, 65.0), 80.0, "wait", 90.0),
        "it asks for the model": ({"has_task": True, "is_recalled": True}, (75.0, 65.0), 80.0, "enter", inf),
    }.values(),
)
def test_a_gossiping_node_joins_a_coordinator_that_has_answered_for_long(
    facts: dict[str, float], heard: tuple[float, float], now: float, action: str, due: float
) -> None:
    way = reachability(heard_at=heard[0], answering_since=heard[1])
    if heard == (0.0, 0.0):
        way.forget_answers()
    decision = states.gossip(Facts(**{"since": 0.0, "due": 0.0, **facts}), way, RULES, now)
    assert (decision.action, decision.due) == (action, due)


@pytest.mark.parametrize(
    ("facts", "now", "action", "due"),
    {
        "an exchange is open": ({"is_idle": False}, 19.9, "wait", 20.0),
        "it has waited for long enough": ({"is_idle": False}, 20.0, "report", 20.0),
        "a model may be in transit": ({"is_idle": False, "moving_until": 31.0}, 30.0, "wait", 31.0),
        "nothing is open": ({}, 1.0, "report", 20.0),
        "reported": ({"has_reported": True}, 1.0, "wait", 15.0),
        "not acknowledged in time": ({"has_reported": True}, 25.0, "give up", inf),
    }.values(),
)
def test_a_handover_waits_for_open_exchanges_and_then_for_the_acknowledgement(
    facts: dict[str, float], now: float, action: str, due: float
) -> None:
    decision = states.returning(Facts(0.0, **facts), reachability(), RULES, now)
    assert (decision.action, decision.due) == (action, due)
