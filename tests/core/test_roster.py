"""Members, and signs of life."""

import json
from random import Random

import pytest

from shoal.core.membership.life_signs import LifeSigns
from shoal.core.protocol.message import Ack, BlobRef, NodeInfo, Task, TaskStatus
from shoal.core.server.roster import GIVEN_KEPT, NodeRoster


def task(n: int, blob: BlobRef | None = None) -> Task:
    return Task((1, n), "a", "train", 3, 7, blob)


def test_members_come_in_the_order_of_their_names() -> None:
    roster = NodeRoster()
    for node in ("c", "a", "b"):
        roster.admit(node)
    roster["b"].is_present = False
    roster["c"].paused_until = 9.0
    assert [member.node for member in roster.all_members()] == ["a", "b", "c"]
    assert [member.node for member in roster.present_members()] == ["a", "c"]
    assert [member.node for member in roster.askable()] == ["a"]
    assert roster.get("x") is None
    assert roster.admit("b") is roster["b"]
    assert roster["b"].is_present


def test_a_member_remembers_its_last_orders() -> None:
    member = NodeRoster().admit("a")
    for n in range(GIVEN_KEPT + 3):
        member.assign(task(n))
    assert member.recent_tasks == [(1, n) for n in range(3, GIVEN_KEPT + 3)]
    assert member.task == task(GIVEN_KEPT + 2)
    member.close_task(Ack((1, GIVEN_KEPT + 2), True))
    assert member.task is None
    assert member.last_ack == Ack((1, GIVEN_KEPT + 2), True)


def test_a_roster_outlives_its_process() -> None:
    roster = NodeRoster()
    roster.admit("new")
    busy = roster.admit("busy")
    busy.assign(task(1))
    busy.close_task(Ack((1, 1), False, "too late"))
    busy.assign(task(2, BlobRef("d" * 64, 8)))
    busy.failures, busy.paused_until, busy.is_present = 4, 120.0, False
    again = NodeRoster.restore(json.loads(json.dumps(roster.state())))
    assert again.all_members() == roster.all_members()
    assert again.state() == roster.state()


def test_who_was_asked_to_be_silent_is_lost_no_sooner() -> None:
    leases = LifeSigns(10.0)
    leases.record("a", 50.0)  # until then
    leases.record("a", 3.0)
    assert len(leases) == 1
    assert leases.expired(60.0) == []
    assert leases.expired(60.5) == ["a"]
    assert len(leases) == 0


def test_a_lease_runs_out_once() -> None:
    leases = LifeSigns(10.0)
    leases.record("a", 0.0)
    leases.record("b", 5.0)
    assert leases.age("a", 7.0) == 7.0
    assert leases.age("x", 7.0) is None
    assert leases.expired(10.0) == []
    assert leases.expired(10.5) == ["a"]
    assert leases.expired(11.0) == []
    assert leases.expired(99.0) == ["b"]
    leases.record("a", 100.0)
    leases.record("b", 100.0)
    leases.forget("a")
    leases.forget("x")
    assert leases.expired(200.0) == ["b"]


# Values over all members


def lists(roster: NodeRoster) -> dict[str, object]:
    return {
        "here": [m.node for m in roster.present_members()],
        "able": [m.node for m in roster.askable()],
        "names": list(roster.askable_names()),
        "busy": list(roster.busy().items()),
        "finished": roster.finished_nodes(),
        "waiting": roster.waiting_nodes(),
    }


def reckoned(roster: NodeRoster) -> dict[str, object]:
    """Return the same, made again."""
    here = [m for m in roster.all_members() if m.is_present]
    able = [m.node for m in here if not m.is_set_aside]
    return {
        "here": [m.node for m in here],
        "able": able,
        "names": able,
        "busy": [(m.node, m.task.kind) for m in here if m.task is not None],
        "finished": frozenset(m.node for m in here if m.is_finished),
        "waiting": frozenset(m.node for m in here if m.status is not None and m.is_waiting),
    }


def anything(roster: NodeRoster, rng: Random, n: int) -> None:
    """Something that may happen to a member."""
    if not roster.all_members() or rng.random() < 0.1:
        roster.admit(f"n{rng.randrange(12)}", rng.choice([None, NodeInfo(("phone",))]))
        return
    member = rng.choice(roster.all_members())
    match rng.randrange(7):
        case 0:
            member.is_present = rng.random() < 0.5
        case 1 | 2:
            kind = rng.choice(["train", "evaluate"])
            member.assign(Task((1, n), member.node, kind, 3, 7, checks_allowed=rng.randrange(3)))  # type: ignore[arg-type]
        case 3:
            member.close_task(Ack((1, n), True))
        case 4:
            member.paused_until = rng.choice([None, 9.0])
        case 5:
            member.is_finished = rng.random() < 0.5
        case 6 if member.task is not None:
            member.status = TaskStatus(member.node, member.task.id, rng.randrange(3), {}, b"")


@pytest.mark.parametrize("seed", range(20))
def test_what_is_kept_of_all_members_is_what_they_are(seed: int) -> None:
    roster, rng = NodeRoster(), Random(seed)
    for n in range(300):
        anything(roster, rng, n)
        if rng.random() < 0.5:  # else several things change before a check
            assert lists(roster) == reckoned(roster), n
        if n == 150:
            roster = NodeRoster.restore(json.loads(json.dumps(roster.state())))


def test_who_was_given_the_busy_keeps_them() -> None:
    roster = NodeRoster()
    roster.admit("a").assign(task(1))
    before = roster.busy()
    roster["a"].close_task(Ack((1, 1), True))
    assert (before, roster.busy()) == ({"a": "train"}, {})


def test_the_revision_rises_with_what_a_selection_goes_by() -> None:
    roster = NodeRoster()
    member, seen = roster.admit("a"), [0]
    for change in (
        lambda: setattr(member, "is_present", False),
        lambda: setattr(member, "paused_until", 9.0),
        lambda: roster.admit("a", NodeInfo(("phone",))),
        lambda: roster.admit("b"),
    ):
        change()
        assert roster.revision > seen[-1]
        seen.append(roster.revision)
    member.assign(task(1))
    member.close_task(Ack((1, 1), True))
    assert roster.revision == seen[-1]
