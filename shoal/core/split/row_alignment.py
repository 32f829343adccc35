"""The alignment of two parties' rows by a private set intersection, which the coordinator relays.

An intersection has a number. Each party sends its masked ids (leg 0), then the other's ids, masked again (leg 1), and
computes its rows from the answer. Its secret is in memory only: a party that has lost it masks its ids otherwise. Then
the next intersection begins for both, so rows of different intersections never meet.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.errors import InvalidPayload, Refused
from shoal.core.model.tree import Layout, Slots, Tree, same_layout
from shoal.core.protocol.message import BlobRef
from shoal.core.protocol.split_message import NoTurn, OtherIds, PartyIds

IDS = "ids"
MASKED_BYTES = 32
"""Bytes of a masked id."""


@dataclass(frozen=True)
class KeptIds:
    """A message of a party that the coordinator keeps."""

    node: str
    leg: int
    blob: BlobRef


@dataclass
class AlignmentState:
    """Durable state of the coordinator: the number of the intersection and the messages of it."""

    number: int = 1
    kept: list[KeptIds] = field(default_factory=list)

    def keep(self, message: PartyIds) -> bool:
        """Keep a message of this intersection; return False if the party has sent another one before, or with another
        secret.

        Raises `Refused` for a leg that is not due.
        """
        mine = [one for one in self.kept if one.node == message.node]
        if mine and mine[0].blob.digest != message.own:
            return False
        if message.leg == len(mine) < 2:
            self.kept.append(KeptIds(message.node, message.leg, message.blob))
            return True
        if not 0 <= message.leg < len(mine):
            raise Refused(f"ids of leg {message.leg} after {len(mine)} messages", code="split.ids")
        return mine[message.leg].blob == message.blob

    def standing(self, node: str, kept: int) -> OtherIds | NoTurn:
        """Return the other party's message of the last leg that this one has sent; `kept`: its number of messages."""
        own = next((one.blob.digest for one in self.kept if one.node == node), "")
        for one in self.kept:
            if own and one.node != node and one.leg == kept - 1:
                return OtherIds(self.number, one.leg, own, one.blob)
        return NoTurn()


def ids_slots(masked: bytes) -> Slots:
    """Return masked ids as a blob."""
    return {IDS: Tree.of({IDS: np.frombuffer(masked, np.uint8)})}


def ids_layout(count: int) -> dict[str, Layout]:
    """Return the layout of a blob of that many masked ids."""
    return {IDS: Layout.of([(IDS, "U8", (count * MASKED_BYTES,))])}


def masked_ids(slots: Slots, ids_max: int) -> bytes:
    """Return the masked ids of a blob. Raises `InvalidPayload` for one of another form or size."""
    tree = tree_slot(slots, IDS) if slots.keys() == {IDS} else None
    if tree is None or tree.layout.nbytes > ids_max * MASKED_BYTES:
        raise InvalidPayload(f"a message that is not of at most {ids_max} masked ids", code="split.ids")
    same_layout(ids_layout(tree.layout.nbytes // MASKED_BYTES)[IDS], tree.layout)
    return np.asarray(tree[IDS], np.uint8).tobytes()
