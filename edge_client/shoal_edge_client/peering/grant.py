"""Which life of the coordinator this node obeys: in each term the first that it hears, also after a restart.

Two coordinators with one key, one of them a copy, may come to be of one term; the rule is `Grant`. What is granted is
written down before anything is obeyed. To the one that is refused this node is deaf: as far as anybody else here can
tell, it is unreachable, so the other is sought, through peers as well.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from shoal.core.errors import Unreachable
from shoal.trust.codes import refusal
from shoal_edge_client.peering.desk import Desk


class Fence:
    """Of one job. Any thread may call. `refused` is told the code and the reason of each answer that is not heard."""

    def __init__(self, desk: Desk, refused: Callable[[str, str], None]) -> None:
        self._desk, self._refused = desk, refused
        self._grant, self._lock = desk.grant(), threading.Lock()

    def hear(self, term: int, life: int) -> None:
        """An answer is of that term, and of that life of the coordinator.

        Raises `Unreachable` where another one has the term, and `StorageFailed`.
        """
        with self._lock:
            found = self._grant.after(term, life)
            if found is not None and found != self._grant:
                self._desk.keep_grant(found)
                self._grant = found
            held = self._grant
        if found is None:
            error = refusal("trust.lease-forked", f"term {term} is held by boot {held.life:x}; this is boot {life:x}")
            self._refused(error.code, error.message)
            raise Unreachable(error.message, code=error.code, hint=error.hint)

    def life(self, term: int) -> int:
        """Which has that term here; 0: it is not known."""
        held = self._grant
        return held.life if held.term == term else 0
