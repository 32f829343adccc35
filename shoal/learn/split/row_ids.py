"""The ids of a party's rows: its messages of a private set intersection, and the rows that come of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.core.model.tree import Tree
from shoal.core.protocol.message import BlobRef, Blobs
from shoal.core.split.part_state import Masked, MaskIds
from shoal.core.split.row_alignment import ids_slots, masked_ids
from shoal.trust.intersection import IDS_MAX, PrivateIntersection

ROWS = "rows"


class RowIds:
    """A function from `MaskIds` to `Masked`, which keeps the secret of one intersection in memory. `ids`: checked
    before, because the coordinator gets the errors of this function."""

    def __init__(self, ids: Sequence[str | bytes], blobs: Blobs) -> None:
        self._ids, self._blobs = ids, blobs
        self._mine: PrivateIntersection | None = None

    def __call__(self, work: MaskIds) -> Masked:
        """Do one leg. Raises `InvalidJob` for ids that do not serve, `Refused` for messages that do not answer them."""
        if work.received is None:
            self._mine = PrivateIntersection(self._ids)
            return Masked(work.number, 0, self._blobs.put(ids_slots(self._mine.masked())))
        assert self._mine is not None
        received = masked_ids(self._blobs.get(work.received), IDS_MAX)
        if work.leg == 1:
            return Masked(work.number, 1, self._blobs.put(ids_slots(self._mine.answer(received))))
        rows = np.array(self._mine.rows(received), np.int64)
        blob = self._blobs.put({ROWS: Tree.of({ROWS: rows})}) if len(rows) else None
        return Masked(work.number, 2, blob, len(rows))


def rows_of(blobs: Blobs, ref: BlobRef) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Return the numbers of rows of a blob."""
    tree = blobs.get(ref)[ROWS]
    assert isinstance(tree, Tree)
    return np.array(tree[ROWS], np.int64)
