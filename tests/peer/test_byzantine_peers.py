"""A peer that says what no honest one can say is blamed, ends in quarantine, and is not heeded from then on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from shoal.core.errors import InvalidPayload
from shoal.core.machine import Note
from shoal.core.message import Ref
from shoal.core.peer_message import Bulletin, Declare, Offer, Part, PeerMessage, Ping, Push, Rumour, Suspect, Swapped
from shoal.core.plausible import lie
from shoal.core.rumours import INCARNATION_MAX
from shoal.peer_wire import Letter
from shoal.trust.papers import Peer
from shoal_peer.claims import check_claims
from shoal_peer.jury import LIE, SAME_MAX, code_of, heeded
from tests.peer.stage import Voice, folders, node

BODY = Ref("ab" * 32, 20)
HIGHEST = Rumour("c", "left", INCARNATION_MAX + 1)


def test_three_lies_put_their_sender_in_quarantine(tmp_path: Path) -> None:
    async def scene() -> None:
        peers = folders(tmp_path)
        async with node(peers / "a", hold=True) as a:
            liar = Voice(peers / "b", a)
            for number in range(SAME_MAX):
                assert a.quarantine.nodes == set()
                assert await liar.says(Ping("b", 0, number, (HIGHEST,))) == (200, ())
            assert a.quarantine.nodes == {"b"}
            assert a.refused == {LIE: SAME_MAX}
            assert a.pump.membership.state_of("c") == "dead", "nobody has heard of it yet"
            status, said = await liar.says(Ping("b", 0, 9, (Rumour("c", "alive", 3),)))
            assert status == 200
            assert said, "that it is there itself is believed"
            assert a.pump.membership.state_of("c") == "dead", "what it says of others is not"

    asyncio.run(scene())


def test_of_one_in_quarantine_nothing_about_others_or_the_hub_is_heeded() -> None:
    bulletin, declare = Bulletin("b", 1, False, False, 0, None), Declare("b", 2, 0, BODY, "x")
    messages: list[PeerMessage] = [Ping("b", 0, 1, (HIGHEST,)), bulletin, declare, Suspect("b", 1)]
    assert heeded(messages, {"c"}) == messages
    assert heeded(messages, {"b"}) == [Ping("b", 0, 1), Suspect("b", 1)]


def test_a_lie_has_a_code_of_its_own() -> None:
    assert code_of(lie("b", "x")) == LIE
    assert code_of(Note("refusal", "x", 0, "b")) == "machine"


def members(*examples: int) -> list[Peer]:
    return [
        Peer(name, name * 20, f"ed25519:{'0' * 64}", (), False, most)
        for name, most in zip("abc", examples, strict=False)
    ]


@pytest.mark.parametrize(
    ("message", "most"),
    [
        (lambda claim: Swapped("b", ("a", 1, 1), claim, 0.5, BODY), 20),
        (lambda claim: Offer("b", 1, BODY, weight=claim), 20),
        (lambda claim: Push("b", ("b", 1, 1), claim, BODY), 60),
        (lambda claim: Part("b", 1, 0, 0, claim, BODY), 60),
    ],
    ids=["swapped", "offer", "push", "part"],
)
def test_no_weight_is_above_what_the_roster_allows(message, most: int) -> None:
    """A share that goes round may be all there is, but not more."""
    check_claims(Letter("toys", (message(most),)), "b", members(10, 20, 30))
    with pytest.raises(InvalidPayload, match=f"the roster allows {most}"):
        check_claims(Letter("toys", (message(most + 1),)), "b", members(10, 20, 30))


def test_a_share_is_not_bounded_where_somebody_is_not() -> None:
    check_claims(Letter("toys", (Push("b", ("b", 1, 1), 1e9, BODY),)), "b", members(10, 20, 0))
