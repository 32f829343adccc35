"""A peer that says what no honest one can say is blamed, ends in quarantine, and is not heeded from then on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from shoal.core.errors import InvalidPayload
from shoal.core.gossip.counter_bounds import implausible
from shoal.core.membership.dissemination import INCARNATION_MAX
from shoal.core.protocol.machine import JobEvent
from shoal.core.protocol.message import BlobRef
from shoal.core.protocol.peer_message import (
    CoordinatorProbe,
    CoordinatorStatus,
    DeclareFailover,
    ExchangeAccept,
    MemberUpdate,
    ModelOffer,
    PeerMessage,
    Ping,
    PushShare,
    RingChunk,
)
from shoal.peering.host.quarantine import IMPLAUSIBLE, SAME_MAX, refusal_code, without_hearsay
from shoal.peering.roster.example_claims import check_claims
from shoal.trust.documents import RosterEntry
from shoal.wire.peer_codec import MessageBatch
from tests.peer.scenario import PeerClient, folders, node

BODY = BlobRef("ab" * 32, 20)
HIGHEST = MemberUpdate("c", "left", INCARNATION_MAX + 1)


def test_three_lies_put_their_sender_in_quarantine(tmp_path: Path) -> None:
    async def scene() -> None:
        peers = folders(tmp_path)
        async with node(peers / "a", hold=True) as a:
            liar = PeerClient(peers / "b", a)
            for number in range(SAME_MAX):
                assert a.group.refusals.quarantined == set()
                assert await liar.send(Ping("b", 0, number, (HIGHEST,))) == (200, ())
            assert a.group.refusals.quarantined == {"b"}
            assert a.group.refusals.counts == {IMPLAUSIBLE: SAME_MAX}
            assert a.group.membership.state_of("c") == "dead", "nobody has heard of it yet"
            status, said = await liar.send(Ping("b", 0, 9, (MemberUpdate("c", "alive", 3),)))
            assert status == 200
            assert said, "that it is there itself is believed"
            assert a.group.membership.state_of("c") == "dead", "what it says of others is not"

    asyncio.run(scene())


def test_of_one_in_quarantine_nothing_about_others_or_the_hub_is_heeded() -> None:
    bulletin, declare = CoordinatorStatus("b", 1, False, False, 0, None), DeclareFailover("b", 2, 0, BODY, "x")
    messages: list[PeerMessage] = [Ping("b", 0, 1, (HIGHEST,)), bulletin, declare, CoordinatorProbe("b", 1)]
    assert without_hearsay(messages, {"c"}) == messages
    assert without_hearsay(messages, {"b"}) == [Ping("b", 0, 1), CoordinatorProbe("b", 1)]


def test_a_lie_has_a_code_of_its_own() -> None:
    assert refusal_code(implausible("b", "x")) == IMPLAUSIBLE
    assert refusal_code(JobEvent("refusal", "x", 0, "b")) == "machine"


def members(*examples: int) -> list[RosterEntry]:
    return [
        RosterEntry(name, name * 20, f"ed25519:{'0' * 64}", (), False, most)
        for name, most in zip("abc", examples, strict=False)
    ]


@pytest.mark.parametrize(
    ("message", "most"),
    [
        (lambda claim: ExchangeAccept("b", ("a", 1, 1), claim, 0.5, BODY), 20),
        (lambda claim: ModelOffer("b", 1, BODY, weight=claim), 20),
        (lambda claim: PushShare("b", ("b", 1, 1), claim, BODY), 60),
        (lambda claim: RingChunk("b", 1, 0, 0, claim, BODY), 60),
    ],
    ids=["swapped", "offer", "push", "part"],
)
def test_no_weight_is_above_what_the_roster_allows(message, most: int) -> None:
    """A share that goes round may be all there is, but not more."""
    check_claims(MessageBatch("toys", (message(most),)), "b", members(10, 20, 30))
    with pytest.raises(InvalidPayload, match=f"the roster allows {most}"):
        check_claims(MessageBatch("toys", (message(most + 1),)), "b", members(10, 20, 30))


def test_a_share_is_not_bounded_where_somebody_is_not() -> None:
    check_claims(MessageBatch("toys", (PushShare("b", ("b", 1, 1), 1e9, BODY),)), "b", members(10, 20, 0))
