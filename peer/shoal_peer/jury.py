"""Whose models are not mixed, though nothing is wrong with their form: by their loss, or because of what came before.

    gate          a model whose loss on this peer's own data is far worse than its own model's is declined
    quarantine    who has sent three inputs that had to be refused for the same reason is declined from then on, and
                  what it says of others or of the hub is not heeded

To decline is part of the protocol: neither side mixes, and nothing is lost (`Mixer.decline`). It is possible up to the
moment at which this peer takes its step. Who began an exchange sees the other's model after that one's step, and must
take its own: a gate protects peers that are asked, and clipping those that ask. That model is measured and counted all
the same, so that nobody is asked a fourth time who answers with such.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Hashable, Sequence
from dataclasses import replace
from math import isfinite

from shoal.core.errors import ShoalError
from shoal.core.machine import Note
from shoal.core.message import Metrics, Ref
from shoal.core.peer_message import Bulletin, Declare, MembershipMessage, Offer, PeerMessage, Push, Swap, Swapped
from shoal.core.plausible import Lie

LOSS = "eval/loss"
LOSS_LEAST, LOSS_MORE = 0.3, 0.5
"""A small loss of one's own counts as so much; and another's may be so much greater in any case."""
QUARANTINE = "quarantine"
"""Why everything of such a sender is declined."""
SAME_MAX = 3
"""So many inputs that are refused for one reason put their sender in quarantine."""
LIE = "peer.lie"
"""The code of what no honest peer can have said: see `shoal.core.plausible`."""
ACCIDENTS = ("payload.short", "payload.length")
"""Refusals that a broken connection may cause, and nobody's fault."""


class Quarantine:
    """Counts what was refused, for each sender and reason. Whoever is in stays in for as long as the process lives."""

    def __init__(self) -> None:
        self._refused: Counter[tuple[str, str]] = Counter()
        self.nodes: set[str] = set()

    def note(self, sender: str, code: str) -> bool:
        """An input of an authenticated sender was refused; whether that puts it in."""
        if not code.startswith(("payload.", "peer.weight", "peer.loss", LIE)) or code in ACCIDENTS:
            return False
        self._refused[sender, code] += 1
        if self._refused[sender, code] < SAME_MAX or sender in self.nodes:
            return False
        self.nodes.add(sender)
        return True


def code_of(note: Note) -> str:
    """Return the code under which a machine's refusal is counted."""
    return LIE if isinstance(note, Lie) else "machine"


def heeded(messages: Sequence[PeerMessage], quarantined: Collection[str]) -> list[PeerMessage]:
    """Return what is heeded of the messages of one peer: of one in quarantine, nothing about others or the hub."""
    found: list[PeerMessage] = []
    for message in messages:
        if message.node not in quarantined:
            found.append(message)
        elif isinstance(message, MembershipMessage):
            found.append(replace(message, news=()))
        elif not isinstance(message, Bulletin | Declare):
            found.append(message)
    return found


class Gate:
    """The loss gate: more than `times` one's own loss, and a little, is too much. It asks one thing at a time.

    `theirs` measures a model that was shown, `own` this peer's, on this peer's data; they raise `ShoalError`.
    """

    def __init__(
        self, theirs: Callable[[Ref], Awaitable[Metrics]], own: Callable[[], Awaitable[Metrics]], times: float
    ) -> None:
        self._theirs, self._own, self._times = theirs, own, times
        self._turn = asyncio.Lock()
        self._when: Hashable = None
        self._own_loss: float | None = None

    async def fault(self, message: PeerMessage, when: Hashable) -> str:
        """Why this message's model must not be mixed; empty where it may. A judge that fails judges nobody.

        `when`: this peer's round; its own model is measured once in each.
        """
        if not isinstance(message, Swap | Swapped | Push | Offer):
            return ""
        async with self._turn:
            try:
                if when != self._when:
                    self._own_loss, self._when = (await self._own()).get(LOSS), when
                theirs = (await self._theirs(message.body)).get(LOSS)
            except ShoalError:
                return ""
        if theirs is None or self._own_loss is None or not isfinite(self._own_loss):
            return ""
        most = self._times * max(self._own_loss, LOSS_LEAST) + LOSS_MORE
        return "" if theirs <= most else f"its loss here is {theirs:.4g}; at most {most:.4g}, by this peer's own"
