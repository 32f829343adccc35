"""Incarnation of the coordinator that this node obeys: in each term the first that it hears, also after a restart.

Two coordinators with one key, one of them a copy, may reach the same term; `IncarnationGrant` decides. The grant is
written to disk before it is obeyed. This node treats the refused one as unreachable, so it looks for the other,
also through peers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from shoal.core.errors import Unreachable
from shoal.core.failover.failover import IncarnationGrant
from shoal.trust.codes import refusal
from shoal_edge_client.peering.peer_files import PeerFiles


class IncarnationFence:
    """The fence of one job. Any thread may call. `refused` receives code and reason of each fenced answer."""

    def __init__(self, files: PeerFiles, refused: Callable[[str, str], None]) -> None:
        self._files, self._refused = files, refused
        self._grant, self._lock = files.load("incarnation", _grant) or IncarnationGrant(), threading.Lock()

    def check(self, term: int, incarnation: int) -> None:
        """Check the term and incarnation of an answer of the coordinator.

        Raises `Unreachable` where another one has the term, and `StorageFailed`.
        """
        with self._lock:
            found = self._grant.after(term, incarnation)
            if found is not None and found != self._grant:
                self._files.save("incarnation", {"term": found.term, "incarnation": found.incarnation})
                self._grant = found
            held = self._grant
        if found is None:
            used = f"term {term} was used by another coordinator process, {held.incarnation:x}"
            text = f"{used}; {incarnation:x} may be a copy of it"
            error = refusal("trust.term-forked", text)
            self._refused(error.code, error.message)
            raise Unreachable(error.message, code=error.code, hint=error.hint)

    def incarnation(self, term: int) -> int:
        """Return the incarnation that holds the term; 0 if unknown."""
        held = self._grant
        return held.incarnation if held.term == term else 0


def _grant(values: dict[str, Any]) -> IncarnationGrant:
    return IncarnationGrant(int(values["term"]), int(values["incarnation"]))
