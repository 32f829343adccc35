"""Pieces of models on their way out."""

from __future__ import annotations

import pytest

from shoal.peering.state import progress_report
from shoal.peering.state.progress_report import PIECE_BYTES, PIECE_BYTES_MAX, QUICK_S, pieces_of


def test_pieces_grow_while_they_are_taken_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    data, now = bytes(range(256)) * 8000, 0.0
    monkeypatch.setattr(progress_report.time, "monotonic", lambda: now)
    found = []
    for number, piece in enumerate(pieces_of(data)):
        found.append(piece)
        now += 2 * QUICK_S if number == 4 else 0.0
    assert b"".join(found) == data
    most, half = PIECE_BYTES_MAX, PIECE_BYTES_MAX // 2
    assert [len(piece) for piece in found[:8]] == [PIECE_BYTES, half, most, most, most, PIECE_BYTES, half, most]
