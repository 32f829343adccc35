"""A hub that is told to go away and to come back: what is said twice, and what is said at the wrong time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.core.algorithm import tree_slot
from shoal.core.machine import Boot, Note, Send
from shoal.core.message import Join, Knock, Order, Report, Stop, Switch
from shoal.sim.bodies import MemoryBodies
from tests.core.test_hub import NODES, hub_of, model, report


def test_calling_a_job_back_that_is_there_changes_nothing() -> None:
    hub = hub_of(MemoryBodies())
    before = hub.state()
    assert not any(isinstance(effect, Note | Send) for effect in hub.on(Switch("server"), 1.0))
    assert hub.state() == before
    assert {hub.standing(node).kind for node in NODES} == {"train"}  # type: ignore[union-attr]


def test_there_and_back_twice_said_is_once() -> None:
    hub = hub_of(MemoryBodies())
    moves = []
    for to in ("gossip", "gossip", "server", "server"):
        effects = hub.on(Switch(to), 1.0)  # type: ignore[arg-type]
        moves += [effect.text for effect in effects if isinstance(effect, Note) and effect.kind == "mode"]
    assert moves == ["the peers carry on: by an operator", "back to the server: by an operator"]
    for node in NODES:
        order = hub.standing(node)
        assert isinstance(order, Order)
        assert (order.kind, order.recall, order.rev) == ("gossip", True, 1)
        hub.on(report(hub, node, {"model": model(1.0, -1.0)}, 2.0), 2.0)
    assert (hub.mode, hub.version) == ("server", 1)
    assert list(tree_slot(hub.slots, "model")["w"]) == [2.0, 1.0]


@pytest.mark.parametrize("event", [Boot(), Knock("z", 7)])
def test_orders_to_carry_on_are_given_anew_in_a_new_term(event: Boot | Knock) -> None:
    """Peers obey nothing of an older term than the hub's, and would not hand back what they are asked for in one."""
    hub = hub_of(MemoryBodies())
    hub.on(Switch("gossip"), 1.0)
    hub.on(Switch("server"), 1.0)
    before = {node: hub.standing(node) for node in NODES}
    late = {node: report(hub, node, {"model": model(9.0, 9.0)}, 2.0) for node in NODES}
    effects = hub.on(event, 2.0)
    for node in NODES:
        old, order = before[node], hub.standing(node)
        assert isinstance(old, Order)
        assert isinstance(order, Order)
        assert order.id[0] == hub.boot > old.id[0]
        assert order == replace(old, id=order.id), "in everything else it is the same"
        assert Send(node, order) in effects
        assert hub.verdict(late[node]) is not None, "a report on the old one does not count"
        hub.on(report(hub, node, {"model": model(1.0, -1.0)}, 2.0), 3.0)
    assert (hub.mode, hub.version) == ("server", 1)
    assert list(tree_slot(hub.slots, "model")["w"]) == [2.0, 1.0]


def test_a_stop_after_the_round_brings_the_job_back_first() -> None:
    hub = hub_of(MemoryBodies())
    hub.on(Switch("gossip"), 1.0)
    hub.on(Stop("enough", "round"), 2.0)
    assert (hub.mode, hub.phase) == ("returning", "running")
    for node in NODES:
        hub.on(report(hub, node, {"model": model(1.0, -1.0)}, 2.0), 3.0)
    assert (hub.mode, hub.phase, hub.version) == ("server", "evaluating", 1)
    assert list(tree_slot(hub.slots, "model")["w"]) == [2.0, 1.0]


def test_a_job_whose_training_is_over_cannot_go() -> None:
    hub = hub_of(MemoryBodies(), versions=1)
    for node in NODES:
        hub.on(report(hub, node, {"model": model(1.0, -1.0)}, 2.0), 1.0)
    assert hub.phase == "evaluating"
    (note,) = hub.on(Switch("gossip"), 2.0)[:1]
    assert isinstance(note, Note)
    assert "cannot be switched" in note.text
    assert hub.mode == "server"


def test_who_went_away_as_training_ended_hands_back_what_it_learned_since() -> None:
    """The hub died while the nodes measured its last version: peers would not measure anything, and have more."""
    hub = hub_of(MemoryBodies(), versions=1)
    for node in NODES:
        hub.on(report(hub, node, {"model": model(1.0, -1.0)}, 2.0), 1.0)
    assert (hub.phase, hub.version) == ("evaluating", 1)
    order = hub.standing("a")
    assert isinstance(order, Order)
    hub.on(Report("a", order.id, 1, 5.0, None, {"eval/accuracy": 0.5}), 2.0)
    hub.on(Boot(), 3.0)
    for node in NODES:
        hub.on(Join(node, (1, 5)), 4.0)
    assert (hub.mode, hub.phase) == ("returning", "running")
    for node in NODES:
        hub.on(report(hub, node, {"model": model(1.0, -1.0)}, 2.0), 5.0)
    assert (hub.mode, hub.phase, hub.version) == ("server", "evaluating", 2)
    assert list(tree_slot(hub.slots, "model")["w"]) == [3.0, 0.0]
