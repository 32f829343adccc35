"""The decision on a poll, without a coordinator around it."""

from __future__ import annotations

import pytest

from shoal.core.protocol.message import DrainNode, Leave, NodeInfo, NoTask, Poll, Stop, Task
from shoal.core.server.hub import Hub
from shoal_coordinator.node_protocol.poll_decision import HeldTask, JobPoll, PollReply, decide_poll
from tests.core.test_layout_mismatch import RIGHT, TEXT, WRONG, hub_of


def poll(
    node: str, held: HeldTask | None = None, *, drain: str = "", form: object = RIGHT.form, is_wanted: bool = True
) -> JobPoll:
    info = NodeInfo(model=form, drain_reason=drain)  # type: ignore[arg-type]
    return JobPoll(info, DrainNode(node, drain), held, is_wanted)


@pytest.fixture
def hub() -> Hub:
    """Nodes a and b have tasks of the first round."""
    return hub_of(RIGHT, RIGHT)


def task_of(hub: Hub, node: str) -> Task:
    task = hub.roster[node].task
    assert task is not None
    return task


def test_a_task_that_the_node_does_not_hold_is_the_reply(hub: Hub) -> None:
    task = task_of(hub, "a")
    assert decide_poll(hub, poll("a")) == PollReply(task)
    assert decide_poll(hub, poll("a", (task.id, task.revision))) is None
    assert decide_poll(hub, poll("a", (task.id, task.revision - 1))) == PollReply(task, is_amendment=True)


def test_a_hub_takes_a_node_that_it_does_not_know_before_it_replies(hub: Hub) -> None:
    first = decide_poll(hub, poll("late"))
    assert first == Poll("late", NodeInfo(model=RIGHT.form))
    hub.on(first, 1.0)
    assert decide_poll(hub, poll("late"), is_introduced=True) is None


def test_a_hub_learns_that_an_operator_drained_a_node(hub: Hub) -> None:
    assert decide_poll(hub, poll("a", drain="broken disk")) == DrainNode("a", "broken disk")
    assert decide_poll(hub, poll("a", drain="broken disk"), is_introduced=True) == PollReply(task_of(hub, "a"))


def test_a_node_that_polls_for_other_jobs_leaves_once(hub: Hub) -> None:
    assert decide_poll(hub, poll("a", is_wanted=False)) == Leave("a")
    assert decide_poll(hub, poll("a", is_wanted=False), is_introduced=True) is None
    assert decide_poll(hub, poll("stranger", is_wanted=False)) is None


def test_a_withdrawn_task_is_told_of_and_a_reported_one_is_not(hub: Hub) -> None:
    held = (task_of(hub, "a").id, 0)
    hub.on(DrainNode("a", "broken disk", withdraw=True), 1.0)
    found = decide_poll(hub, poll("a", held, drain="broken disk"))
    assert isinstance(found, PollReply)
    assert isinstance(found.message, NoTask)
    assert decide_poll(hub, poll("a", drain="broken disk")) is None


def test_a_node_with_another_model_is_stopped() -> None:
    hub = hub_of(RIGHT, RIGHT, WRONG)
    assert decide_poll(hub, poll("c", form=WRONG.form)) == PollReply(Stop(TEXT, model_differs=True))


def test_a_decision_changes_nothing(hub: Hub) -> None:
    before = hub.snapshot()
    for node in ("a", "late"):
        decide_poll(hub, poll(node, drain="broken disk"))
    assert hub.snapshot() == before
