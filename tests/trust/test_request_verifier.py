"""Who comes in, who does not, and that a refusal leaves the door as it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import NotAllowed, Refused, StorageFailed
from shoal.core.machine import HUB
from shoal.trust.codes import REASONS
from shoal.trust.envelope import sha256
from shoal.trust.gatekeeper import Gatekeeper
from tests.trust.job import BODY, CHARTER, DAY, NOW, SHA, arrived, ask, cert, come, gate, key, roster, sealed, signer
from tests.trust.test_papers import code_of


def refused(door: Gatekeeper, action: Callable[[], object]) -> str:
    """The code of the refusal, which has changed nothing."""
    before = json.dumps(door.snapshot())
    with pytest.raises((NotAllowed, Refused)) as caught:
        action()
    assert json.dumps(door.snapshot()) == before
    assert caught.value.hint == REASONS[caught.value.code].hint
    assert type(caught.value) is REASONS[caught.value.code].kind
    return caught.value.code


def test_a_member_comes_in_once() -> None:
    door, said = gate(), ask(signer())
    assert come(door, said) == "b"
    assert refused(door, lambda: come(door, said)) == "trust.replayed"
    assert come(door, ask(signer("c"))) == "c"


def test_requests_may_overtake_each_other() -> None:
    door, said = gate(), signer()
    requests = [ask(said) for _ in range(64)]
    assert {come(door, one) for one in reversed(requests)} == {"b"}
    assert {refused(door, lambda one=one: come(door, one)) for one in requests} == {"trust.replayed"}


def test_after_a_restart_old_requests_are_refused() -> None:
    door, old = gate(), ask(signer(boot=1))
    assert come(door, ask(signer(boot=2))) == "b"
    assert refused(door, lambda: come(door, old)) == "trust.boot-old"


def test_the_coordinator_comes_in_as_the_hub() -> None:
    door = Gatekeeper(CHARTER, key("a").peer_id)  # before there is a roster
    assert come(door, ask(signer("coordinator"))) == HUB
    assert refused(door, lambda: come(door, ask(signer("b")))) == "trust.stranger"


# Bad input


def test_a_forged_sender_is_refused() -> None:
    door, said = gate(), ask(signer("z"))
    forged = replace(said, sender=key("b").peer_id)
    assert refused(door, lambda: come(door, forged)) == "trust.signature"
    assert refused(door, lambda: come(door, said)) == "trust.stranger"
    assert come(door, ask(signer())) == "b"  # whose number was not used up by the forgery


def test_a_revoked_sender_is_refused() -> None:
    door, said = gate(), signer()
    assert come(door, ask(said)) == "b"
    door.take_roster(sealed(roster(2, "ac", revoked="b")))
    assert refused(door, lambda: come(door, ask(said))) == "trust.revoked"


def test_a_sender_that_is_revoked_while_its_body_comes_is_refused() -> None:
    door = gate()
    claim = door.examine(arrived(ask(signer())), NOW)
    door.take_roster(sealed(roster(2, "ac", revoked="b")))
    assert refused(door, lambda: door.admit(claim, sha256(BODY), NOW)) == "trust.revoked"


def test_of_two_copies_under_way_one_is_refused() -> None:
    door, said = gate(), ask(signer())
    one, other = door.examine(said, NOW), door.examine(said, NOW)
    assert door.admit(other, sha256(BODY), NOW) == "b"
    assert refused(door, lambda: door.admit(one, sha256(BODY), NOW)) == "trust.replayed"


def test_a_repetition_is_refused_before_its_body_is_read() -> None:
    door, said = gate(), ask(signer())
    come(door, said)
    assert refused(door, lambda: door.examine(arrived(said), NOW)) == "trust.replayed"


def test_another_body_is_refused_and_the_right_one_still_comes_in() -> None:
    door, said = gate(), ask(signer())
    assert refused(door, lambda: come(door, said, b"a mode1")) == "trust.digest"
    assert come(door, said) == "b"


def test_what_is_meant_for_others_is_refused() -> None:
    door = gate()
    assert refused(door, lambda: come(door, ask(signer(), to="c"))) == "trust.addressee"
    elsewhere = signer(charter=replace(CHARTER, job="mnist"))
    assert refused(door, lambda: come(door, ask(elsewhere))) == "trust.job"
    anew = signer(charter=replace(CHARTER, config_sha=SHA[::-1]))  # the job of that name that was removed
    assert refused(door, lambda: come(door, ask(anew))) == "trust.signature"


def test_an_older_roster_is_refused() -> None:
    door = gate(version=5)
    assert not door.take_roster(sealed(roster(5)))
    assert refused(door, lambda: door.take_roster(sealed(roster(4)))) == "trust.roster-old"
    assert refused(door, lambda: door.take_roster(sealed(roster(5, "ab")))) == "trust.roster-forked"
    assert door.take_roster(sealed(roster(6, "ab")))
    assert refused(door, lambda: come(door, ask(signer("c")))) == "trust.stranger"


def test_a_roster_that_the_coordinator_has_not_signed_is_refused() -> None:
    door = gate()
    values = json.loads(sealed(roster(9, "abcz")))
    values["signature"] = key("b").sign(b"anything")
    text = json.dumps(values, sort_keys=True, separators=(",", ":")).encode()
    assert refused(door, lambda: door.take_roster(text)) == "trust.signature"


# Newcomers


def test_a_newcomer_is_let_in_without_the_coordinator() -> None:
    door, said = gate(), signer("d")
    assert refused(door, lambda: come(door, ask(said))) == "trust.stranger"
    assert door.introduce(sealed(cert()), NOW) == "d"
    assert come(door, ask(said)) == "d"
    assert door.introduce(sealed(cert()), NOW) == "d"  # again: nothing new
    (newcomer,) = [peer for peer in door.members() if peer.node == "d"]
    assert (newcomer.examples, newcomer.urls, newcomer.inbound) == (500, (), False)


def test_a_certificate_that_ran_out_lets_nobody_in() -> None:
    door, said = gate(), signer("d")
    end = NOW + 2 * DAY  # a day after not_after: clocks may be a day off
    assert refused(door, lambda: door.introduce(sealed(cert()), end + 1)) == "trust.expired"
    assert door.introduce(sealed(cert()), end) == "d"
    assert come(door, ask(said), wall_s=end) == "d"
    assert refused(door, lambda: come(door, ask(said), wall_s=end + 1)) == "trust.expired"
    assert door.introduce(sealed(cert(not_after=end)), end + 1) == "d"
    assert come(door, ask(said), wall_s=end + 1) == "d"
    assert door.introduce(sealed(cert(not_after=NOW + 2 * DAY - 1)), end) == "d"  # an older one takes nothing away
    assert come(door, ask(said), wall_s=end + DAY) == "d"


def test_a_clock_that_is_off_matters_to_newcomers_alone() -> None:
    door = gate()
    said = signer()
    assert [come(door, ask(said), wall_s=wall) for wall in (NOW, 0, NOW + 10**9)] == ["b"] * 3
    ahead, behind = NOW + DAY, NOW - DAY
    for wall in (ahead, behind):
        fresh = gate()
        assert fresh.introduce(sealed(cert(not_after=NOW)), wall) == "d"
        assert come(fresh, ask(signer("d")), wall_s=wall) == "d"


def test_a_revoked_certificate_lets_nobody_in() -> None:
    door = gate(revoked="d")
    assert refused(door, lambda: door.introduce(sealed(cert()), NOW)) == "trust.revoked"
    late = gate()
    late.introduce(sealed(cert()), NOW)
    late.take_roster(sealed(roster(2, revoked="d")))
    assert refused(late, lambda: come(late, ask(signer("d")))) == "trust.revoked"
    assert [peer.node for peer in late.members()] == ["a", "b", "c"]


def test_a_forged_certificate_lets_nobody_in() -> None:
    door = gate()
    values = json.loads(sealed(cert()))
    values["paper"]["not_after"] += 1
    text = json.dumps(values, sort_keys=True, separators=(",", ":")).encode()
    assert refused(door, lambda: door.introduce(text, NOW)) == "trust.signature"


def test_a_name_has_one_key() -> None:
    door = gate()
    assert refused(door, lambda: door.introduce(sealed(cert("d", node="b")), NOW)) == "trust.name-taken"
    door.introduce(sealed(cert("d")), NOW)
    again = sealed(cert("e", node="d", not_after=NOW + 9 * DAY))
    assert refused(door, lambda: door.introduce(again, NOW)) == "trust.name-taken"
    assert door.introduce(again, NOW + 3 * DAY) == "d"  # the first has run out
    assert come(door, ask(signer("e"))) == "d"
    assert refused(door, lambda: come(door, ask(signer("d")))) == "trust.stranger"


def test_the_roster_overrules_certificates() -> None:
    door = gate()
    door.introduce(sealed(cert("d", node="new")), NOW)
    door.take_roster(sealed(roster(2)))
    assert come(door, ask(signer("d"))) == "new"  # it does not speak of that name
    door.take_roster(sealed(roster(3, "abcd")))
    assert come(door, ask(signer("d", boot=2))) == "d"  # by now the roster has it, under another name
    assert door.introduce(sealed(cert("d", node="new")), NOW) == "d"
    assert [peer.node for peer in door.members()] == ["a", "b", "c", "d"]

    other = gate()
    other.introduce(sealed(cert("d", node="e")), NOW)
    other.take_roster(sealed(roster(2, "abce")))  # the name is another key's
    assert refused(other, lambda: come(other, ask(signer("d")))) == "trust.stranger"


# Answers


def test_an_answer_is_recognised() -> None:
    door, said = gate("b"), ask(signer())
    answer = signer("a").answer(said, 200, SHA)
    assert door.recognise(answer, said, NOW) == "a"
    assert refused(door, lambda: door.recognise(replace(answer, status=404), said, NOW)) == "trust.signature"
    other = replace(said, seq=said.seq + 1)
    assert refused(door, lambda: door.recognise(answer, other, NOW)) == "trust.signature"
    stolen = signer("c").answer(said, 200, SHA)
    assert refused(door, lambda: door.recognise(stolen, said, NOW)) == "trust.addressee"
    posing = replace(stolen, sender=key("a").peer_id)
    assert refused(door, lambda: door.recognise(posing, said, NOW)) == "trust.signature"
    door.take_roster(sealed(roster(2, "bc", revoked="a")))
    assert refused(door, lambda: door.recognise(answer, said, NOW)) == "trust.revoked"


# What is kept


def test_a_snapshot_holds_everything() -> None:
    door, b, d = gate(version=3, revoked="e"), signer(), signer("d")
    door.introduce(sealed(cert()), NOW)
    used = [ask(b), ask(b), ask(d)]
    late = ask(b)
    for one in used:
        come(door, one)
    kept = json.loads(json.dumps(door.snapshot()))
    again = Gatekeeper.restore(CHARTER, key("a").peer_id, kept)
    assert again.snapshot() == door.snapshot()
    assert {refused(again, lambda one=one: come(again, one)) for one in used} == {"trust.replayed"}
    assert come(again, late) == "b"
    assert come(again, ask(d)) == "d"
    assert refused(again, lambda: come(again, ask(d), wall_s=NOW + 9 * DAY)) == "trust.expired"
    assert refused(again, lambda: come(again, ask(signer("e")))) == "trust.revoked"
    assert refused(again, lambda: again.take_roster(sealed(roster(2)))) == "trust.roster-old"
    assert again.sealed_roster == door.sealed_roster == sealed(roster(3, revoked="e"))
    empty = Gatekeeper(CHARTER, key("a").peer_id)
    assert Gatekeeper.restore(CHARTER, key("a").peer_id, empty.snapshot()).snapshot() == empty.snapshot()


def rich() -> dict[str, Any]:
    door = gate()
    door.introduce(sealed(cert()), NOW)
    come(door, ask(signer()))
    return door.snapshot()


@pytest.mark.parametrize(
    "change",
    [
        {"roster": 5},
        {"roster": "{}"},
        {"roster": sealed(roster()).decode().replace("digits", "digitt")},
        {"roster": "é"},
        {"certificates": 5},
        {"certificates": [5]},
        {"certificates": [sealed(roster()).decode()]},
        {"windows": []},
        *(
            {"windows": {"x": row}}
            for row in [[], [1, 1], [1, 1, 0], [1, 1, 2], [0, 1, 1], [1, 1, 2**64 + 1], [1.0, 1, 1]]
        ),
        {"windows": {"x": ["1", 1, 1]}},
    ],
    ids=repr,
)
def test_a_damaged_snapshot_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(StorageFailed) as caught:
        Gatekeeper.restore(CHARTER, key("a").peer_id, {**rich(), **change})
    assert caught.value.code == "trust.snapshot"
    assert len(caught.value.message) < 1000


@pytest.mark.parametrize("snapshot", [None, [], {}, {"roster": ""}, {"roster": "", "certificates": []}], ids=repr)
def test_what_is_no_snapshot_is_refused(snapshot: object) -> None:
    with pytest.raises(StorageFailed):
        Gatekeeper.restore(CHARTER, key("a").peer_id, snapshot)


# Any order of anything


@given(st.lists(st.tuples(st.sampled_from("bcd"), st.integers(0, 70), st.booleans()), max_size=60), st.integers(0, 60))
def test_nothing_comes_in_twice_even_over_a_restart(steps: list[tuple[str, int, bool]], stop: int) -> None:
    """Members send, a listener repeats what it has heard, and the peer starts again somewhere in between."""
    door = gate(names="abcd")
    senders = {name: signer(name) for name in "bcd"}
    heard = {name: [ask(senders[name])] for name in "bcd"}
    came: set[tuple[str, int]] = set()
    for index, (name, back, fresh) in enumerate(steps):
        if index == stop:
            door = Gatekeeper.restore(CHARTER, key("a").peer_id, json.loads(json.dumps(door.snapshot())))
        if fresh:
            heard[name].append(ask(senders[name]))
        one = heard[name][-1 - back % len(heard[name])]
        said = code_of(lambda door=door, one=one: come(door, one))
        assert said == ("trust.replayed" if (name, one.seq) in came else "taken")
        came.add((name, one.seq))


# At a newcomer's own request


def shows(name: str = "d", **more: Any) -> tuple[bytes, Any]:
    """A certificate, and the request that it comes with."""
    text = sealed(cert(name, **more))
    return text, arrived(ask(signer(name), body=text))


def test_a_newcomer_enters_at_its_own_request_and_that_request_is_used_up() -> None:
    door = gate()
    text, request = shows()
    peer = door.enter(text, request, sha256(text), NOW)
    assert (peer.node, peer.examples) == ("d", 500)
    assert come(door, ask(signer("d", boot=2))) == "d"
    assert refused(door, lambda: door.enter(text, request, sha256(text), NOW)) == "trust.boot-old"
    again = arrived(ask(signer("d", boot=3), body=text))
    assert door.enter(text, again, sha256(text), NOW).node == "d", "as often as it likes"


def test_who_may_not_enter_leaves_no_trace() -> None:
    door = gate(revoked="e")
    text, request = shows()
    other, others = shows("f")
    assert refused(door, lambda: door.enter(other, request, sha256(other), NOW)) == "trust.stranger"
    assert refused(door, lambda: door.enter(text, others, sha256(text), NOW)) == "trust.stranger"
    assert refused(door, lambda: door.enter(text, request, sha256(other), NOW)) == "trust.digest"
    assert refused(door, lambda: door.enter(text, request, sha256(text), NOW + 3 * DAY)) == "trust.expired"
    elsewhere = replace(request, to=key("b").peer_id)
    assert refused(door, lambda: door.enter(text, elsewhere, sha256(text), NOW)) == "trust.addressee"
    gone, his = shows("e")
    assert refused(door, lambda: door.enter(gone, his, sha256(gone), NOW)) == "trust.revoked"
    posing, claim = shows(node="b")
    assert refused(door, lambda: door.enter(posing, claim, sha256(posing), NOW)) == "trust.name-taken"
    forged = replace(request, signature=arrived(ask(signer("f"))).signature)
    assert refused(door, lambda: door.enter(text, forged, sha256(text), NOW)) == "trust.signature"
    assert refused(door, lambda: come(door, ask(signer("d")))) == "trust.stranger"
