"""Admission and refusal of requests; a refusal leaves the gatekeeper as it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import NotAllowed, Refused, StorageFailed
from shoal.core.protocol.machine import HUB
from shoal.trust.codes import REASONS
from shoal.trust.envelope import sha256
from shoal.trust.request_verifier import RequestVerifier
from tests.trust.job import BODY, CHARTER, DAY, NOW, SHA, arrived, ask, cert, come, gate, key, roster, sealed, signer
from tests.trust.test_documents import code_of


def refused(keeper: RequestVerifier, action: Callable[[], object]) -> str:
    """The code of the refusal, which has changed nothing."""
    before = json.dumps(keeper.snapshot())
    with pytest.raises((NotAllowed, Refused)) as caught:
        action()
    assert json.dumps(keeper.snapshot()) == before
    assert caught.value.hint == REASONS[caught.value.code].hint
    assert type(caught.value) is REASONS[caught.value.code].kind
    return caught.value.code


def test_a_member_comes_in_once() -> None:
    keeper, said = gate(), ask(signer())
    assert come(keeper, said) == "b"
    assert refused(keeper, lambda: come(keeper, said)) == "trust.replayed"
    assert come(keeper, ask(signer("c"))) == "c"


def test_requests_may_overtake_each_other() -> None:
    keeper, said = gate(), signer()
    requests = [ask(said) for _ in range(64)]
    assert {come(keeper, one) for one in reversed(requests)} == {"b"}
    assert {refused(keeper, lambda one=one: come(keeper, one)) for one in requests} == {"trust.replayed"}


def test_after_a_restart_old_requests_are_refused() -> None:
    keeper, old = gate(), ask(signer(process_number=1))
    assert come(keeper, ask(signer(process_number=2))) == "b"
    assert refused(keeper, lambda: come(keeper, old)) == "trust.process-old"


def test_the_coordinator_comes_in_as_the_hub() -> None:
    keeper = RequestVerifier(CHARTER, key("a").peer_id)  # before there is a roster
    assert come(keeper, ask(signer("coordinator"))) == HUB
    assert refused(keeper, lambda: come(keeper, ask(signer("b")))) == "trust.stranger"


# Bad input


def test_a_forged_sender_is_refused() -> None:
    keeper, said = gate(), ask(signer("z"))
    forged = replace(said, sender=key("b").peer_id)
    assert refused(keeper, lambda: come(keeper, forged)) == "trust.signature"
    assert refused(keeper, lambda: come(keeper, said)) == "trust.stranger"
    assert come(keeper, ask(signer())) == "b"  # its number was not used up by the forgery


def test_a_revoked_sender_is_refused() -> None:
    keeper, said = gate(), signer()
    assert come(keeper, ask(said)) == "b"
    keeper.update_roster(sealed(roster(2, "ac", revoked="b")))
    assert refused(keeper, lambda: come(keeper, ask(said))) == "trust.revoked"


def test_a_sender_that_is_revoked_while_its_body_comes_is_refused() -> None:
    keeper = gate()
    claim = keeper.examine(arrived(ask(signer())), NOW)
    keeper.update_roster(sealed(roster(2, "ac", revoked="b")))
    assert refused(keeper, lambda: keeper.admit(claim, sha256(BODY), NOW)) == "trust.revoked"


def test_of_two_copies_under_way_one_is_refused() -> None:
    keeper, said = gate(), ask(signer())
    one, other = keeper.examine(said, NOW), keeper.examine(said, NOW)
    assert keeper.admit(other, sha256(BODY), NOW) == "b"
    assert refused(keeper, lambda: keeper.admit(one, sha256(BODY), NOW)) == "trust.replayed"


def test_a_repetition_is_refused_before_its_body_is_read() -> None:
    keeper, said = gate(), ask(signer())
    come(keeper, said)
    assert refused(keeper, lambda: keeper.examine(arrived(said), NOW)) == "trust.replayed"


def test_another_body_is_refused_and_the_right_one_still_comes_in() -> None:
    keeper, said = gate(), ask(signer())
    assert refused(keeper, lambda: come(keeper, said, b"a mode1")) == "trust.digest"
    assert come(keeper, said) == "b"


def test_what_is_meant_for_others_is_refused() -> None:
    keeper = gate()
    assert refused(keeper, lambda: come(keeper, ask(signer(), to="c"))) == "trust.addressee"
    elsewhere = signer(charter=replace(CHARTER, job="mnist"))
    assert refused(keeper, lambda: come(keeper, ask(elsewhere))) == "trust.job"
    anew = signer(charter=replace(CHARTER, config_sha=SHA[::-1]))  # the job of that name that was removed
    assert refused(keeper, lambda: come(keeper, ask(anew))) == "trust.signature"


def test_an_older_roster_is_refused() -> None:
    keeper = gate(version=5)
    assert not keeper.update_roster(sealed(roster(5)))
    assert refused(keeper, lambda: keeper.update_roster(sealed(roster(4)))) == "trust.roster-old"
    assert refused(keeper, lambda: keeper.update_roster(sealed(roster(5, "ab")))) == "trust.roster-forked"
    assert keeper.update_roster(sealed(roster(6, "ab")))
    assert refused(keeper, lambda: come(keeper, ask(signer("c")))) == "trust.stranger"


def test_a_roster_that_the_coordinator_has_not_signed_is_refused() -> None:
    keeper = gate()
    values = json.loads(sealed(roster(9, "abcz")))
    values["signature"] = key("b").sign(b"anything")
    text = json.dumps(values, sort_keys=True, separators=(",", ":")).encode()
    assert refused(keeper, lambda: keeper.update_roster(text)) == "trust.signature"


# Newcomers


def test_a_newcomer_is_let_in_without_the_coordinator() -> None:
    keeper, said = gate(), signer("d")
    assert refused(keeper, lambda: come(keeper, ask(said))) == "trust.stranger"
    assert keeper.introduce(sealed(cert()), NOW) == "d"
    assert come(keeper, ask(said)) == "d"
    assert keeper.introduce(sealed(cert()), NOW) == "d"  # again: nothing new
    (newcomer,) = [peer for peer in keeper.members() if peer.node == "d"]
    assert (newcomer.examples, newcomer.urls, newcomer.is_reachable) == (500, (), False)


def test_a_certificate_that_ran_out_lets_nobody_in() -> None:
    keeper, said = gate(), signer("d")
    end = NOW + 2 * DAY  # a day after not_after: clocks may be a day off
    assert refused(keeper, lambda: keeper.introduce(sealed(cert()), end + 1)) == "trust.expired"
    assert keeper.introduce(sealed(cert()), end) == "d"
    assert come(keeper, ask(said), wall_s=end) == "d"
    assert refused(keeper, lambda: come(keeper, ask(said), wall_s=end + 1)) == "trust.expired"
    assert keeper.introduce(sealed(cert(not_after=end)), end + 1) == "d"
    assert come(keeper, ask(said), wall_s=end + 1) == "d"
    assert keeper.introduce(sealed(cert(not_after=NOW + 2 * DAY - 1)), end) == "d"  # an older one takes nothing away
    assert come(keeper, ask(said), wall_s=end + DAY) == "d"


def test_a_clock_that_is_off_matters_to_newcomers_alone() -> None:
    keeper = gate()
    said = signer()
    assert [come(keeper, ask(said), wall_s=wall) for wall in (NOW, 0, NOW + 10**9)] == ["b"] * 3
    ahead, behind = NOW + DAY, NOW - DAY
    for wall in (ahead, behind):
        fresh = gate()
        assert fresh.introduce(sealed(cert(not_after=NOW)), wall) == "d"
        assert come(fresh, ask(signer("d")), wall_s=wall) == "d"


def test_a_revoked_certificate_lets_nobody_in() -> None:
    keeper = gate(revoked="d")
    assert refused(keeper, lambda: keeper.introduce(sealed(cert()), NOW)) == "trust.revoked"
    late = gate()
    late.introduce(sealed(cert()), NOW)
    late.update_roster(sealed(roster(2, revoked="d")))
    assert refused(late, lambda: come(late, ask(signer("d")))) == "trust.revoked"
    assert [peer.node for peer in late.members()] == ["a", "b", "c"]


def test_a_forged_certificate_lets_nobody_in() -> None:
    keeper = gate()
    values = json.loads(sealed(cert()))
    values["document"]["not_after"] += 1
    text = json.dumps(values, sort_keys=True, separators=(",", ":")).encode()
    assert refused(keeper, lambda: keeper.introduce(text, NOW)) == "trust.signature"


def test_a_name_has_one_key() -> None:
    keeper = gate()
    assert refused(keeper, lambda: keeper.introduce(sealed(cert("d", node="b")), NOW)) == "trust.name-taken"
    keeper.introduce(sealed(cert("d")), NOW)
    again = sealed(cert("e", node="d", not_after=NOW + 9 * DAY))
    assert refused(keeper, lambda: keeper.introduce(again, NOW)) == "trust.name-taken"
    assert keeper.introduce(again, NOW + 3 * DAY) == "d"  # the first has run out
    assert come(keeper, ask(signer("e"))) == "d"
    assert refused(keeper, lambda: come(keeper, ask(signer("d")))) == "trust.stranger"


def test_the_roster_overrules_certificates() -> None:
    keeper = gate()
    keeper.introduce(sealed(cert("d", node="new")), NOW)
    keeper.update_roster(sealed(roster(2)))
    assert come(keeper, ask(signer("d"))) == "new"  # it does not speak of that name
    keeper.update_roster(sealed(roster(3, "abcd")))
    assert come(keeper, ask(signer("d", process_number=2))) == "d"  # by now the roster has it, under another name
    assert keeper.introduce(sealed(cert("d", node="new")), NOW) == "d"
    assert [peer.node for peer in keeper.members()] == ["a", "b", "c", "d"]

    other = gate()
    other.introduce(sealed(cert("d", node="e")), NOW)
    other.update_roster(sealed(roster(2, "abce")))  # the name is another key's
    assert refused(other, lambda: come(other, ask(signer("d")))) == "trust.stranger"


# Answers


def test_an_answer_is_recognized() -> None:
    keeper, said = gate("b"), ask(signer())
    answer = signer("a").answer(said, 200, SHA)
    assert keeper.verify_answer(answer, said, NOW) == "a"
    assert refused(keeper, lambda: keeper.verify_answer(replace(answer, status=404), said, NOW)) == "trust.signature"
    other = replace(said, seq=said.seq + 1)
    assert refused(keeper, lambda: keeper.verify_answer(answer, other, NOW)) == "trust.signature"
    stolen = signer("c").answer(said, 200, SHA)
    assert refused(keeper, lambda: keeper.verify_answer(stolen, said, NOW)) == "trust.addressee"
    posing = replace(stolen, sender=key("a").peer_id)
    assert refused(keeper, lambda: keeper.verify_answer(posing, said, NOW)) == "trust.signature"
    keeper.update_roster(sealed(roster(2, "bc", revoked="a")))
    assert refused(keeper, lambda: keeper.verify_answer(answer, said, NOW)) == "trust.revoked"


# Stored state


def test_a_snapshot_holds_everything() -> None:
    keeper, b, d = gate(version=3, revoked="e"), signer(), signer("d")
    keeper.introduce(sealed(cert()), NOW)
    used = [ask(b), ask(b), ask(d)]
    late = ask(b)
    for one in used:
        come(keeper, one)
    kept = json.loads(json.dumps(keeper.snapshot()))
    again = RequestVerifier.restore(CHARTER, key("a").peer_id, kept)
    assert again.snapshot() == keeper.snapshot()
    assert {refused(again, lambda one=one: come(again, one)) for one in used} == {"trust.replayed"}
    assert come(again, late) == "b"
    assert come(again, ask(d)) == "d"
    assert refused(again, lambda: come(again, ask(d), wall_s=NOW + 9 * DAY)) == "trust.expired"
    assert refused(again, lambda: come(again, ask(signer("e")))) == "trust.revoked"
    assert refused(again, lambda: again.update_roster(sealed(roster(2)))) == "trust.roster-old"
    assert again.sealed_roster == keeper.sealed_roster == sealed(roster(3, revoked="e"))
    empty = RequestVerifier(CHARTER, key("a").peer_id)
    assert RequestVerifier.restore(CHARTER, key("a").peer_id, empty.snapshot()).snapshot() == empty.snapshot()


def rich() -> dict[str, Any]:
    keeper = gate()
    keeper.introduce(sealed(cert()), NOW)
    come(keeper, ask(signer()))
    return keeper.snapshot()


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
        RequestVerifier.restore(CHARTER, key("a").peer_id, {**rich(), **change})
    assert caught.value.code == "trust.snapshot"
    assert len(caught.value.message) < 1000


@pytest.mark.parametrize("snapshot", [None, [], {}, {"roster": ""}, {"roster": "", "certificates": []}], ids=repr)
def test_what_is_no_snapshot_is_refused(snapshot: object) -> None:
    with pytest.raises(StorageFailed):
        RequestVerifier.restore(CHARTER, key("a").peer_id, snapshot)


# Any order of anything


@given(st.lists(st.tuples(st.sampled_from("bcd"), st.integers(0, 70), st.booleans()), max_size=60), st.integers(0, 60))
def test_nothing_comes_in_twice_even_over_a_restart(steps: list[tuple[str, int, bool]], stop: int) -> None:
    """Members send, a listener repeats what it has heard, and the peer starts again somewhere in between."""
    keeper = gate(names="abcd")
    senders = {name: signer(name) for name in "bcd"}
    heard = {name: [ask(senders[name])] for name in "bcd"}
    came: set[tuple[str, int]] = set()
    for index, (name, back, fresh) in enumerate(steps):
        if index == stop:
            keeper = RequestVerifier.restore(CHARTER, key("a").peer_id, json.loads(json.dumps(keeper.snapshot())))
        if fresh:
            heard[name].append(ask(senders[name]))
        one = heard[name][-1 - back % len(heard[name])]
        said = code_of(lambda keeper=keeper, one=one: come(keeper, one))
        assert said == ("trust.replayed" if (name, one.seq) in came else "taken")
        came.add((name, one.seq))


# At a newcomer's own request


def shows(name: str = "d", **more: Any) -> tuple[bytes, Any]:
    """A certificate, and the request that it comes with."""
    text = sealed(cert(name, **more))
    return text, arrived(ask(signer(name), body=text))


def test_a_newcomer_enters_at_its_own_request_and_that_request_is_used_up() -> None:
    keeper = gate()
    text, request = shows()
    peer = keeper.admit_certificate(text, request, sha256(text), NOW)
    assert (peer.node, peer.examples) == ("d", 500)
    assert come(keeper, ask(signer("d", process_number=2))) == "d"
    assert refused(keeper, lambda: keeper.admit_certificate(text, request, sha256(text), NOW)) == "trust.process-old"
    again = arrived(ask(signer("d", process_number=3), body=text))
    assert keeper.admit_certificate(text, again, sha256(text), NOW).node == "d", "as often as it likes"


def test_who_may_not_enter_leaves_no_trace() -> None:
    keeper = gate(revoked="e")
    text, request = shows()
    other, others = shows("f")
    assert refused(keeper, lambda: keeper.admit_certificate(other, request, sha256(other), NOW)) == "trust.stranger"
    assert refused(keeper, lambda: keeper.admit_certificate(text, others, sha256(text), NOW)) == "trust.stranger"
    assert refused(keeper, lambda: keeper.admit_certificate(text, request, sha256(other), NOW)) == "trust.digest"
    assert (
        refused(keeper, lambda: keeper.admit_certificate(text, request, sha256(text), NOW + 3 * DAY)) == "trust.expired"
    )
    elsewhere = replace(request, to=key("b").peer_id)
    assert refused(keeper, lambda: keeper.admit_certificate(text, elsewhere, sha256(text), NOW)) == "trust.addressee"
    gone, his = shows("e")
    assert refused(keeper, lambda: keeper.admit_certificate(gone, his, sha256(gone), NOW)) == "trust.revoked"
    posing, claim = shows(node="b")
    assert refused(keeper, lambda: keeper.admit_certificate(posing, claim, sha256(posing), NOW)) == "trust.name-taken"
    forged = replace(request, signature=arrived(ask(signer("f"))).signature)
    assert refused(keeper, lambda: keeper.admit_certificate(text, forged, sha256(text), NOW)) == "trust.signature"
    assert refused(keeper, lambda: come(keeper, ask(signer("d")))) == "trust.stranger"
