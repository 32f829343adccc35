"""A node's process on a bad network. Files name the faults, and may change.

FAULTS/cut        lines "a b": batches from a never reach b
FAULTS/weather    one batch in ten is answered in vain; one in ten is given up by its sender, and comes later
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.core.errors import ShoalError, Unreachable
from shoal.peering.http.peer_link import PeerLink
from tests.support import edge_process

LATE_S = 1.0

Post = Callable[..., Any]


def on_a_bad_network(post: Post, me: str, faults: Path, rng: random.Random) -> Post:
    """`PeerLink._post`, there."""

    def instead(link: PeerLink, *given: Any) -> Any:
        if faults.joinpath("cut").exists() and f"{me} {link.peer.node}\n" in faults.joinpath("cut").read_text():
            raise Unreachable("the way is cut")
        fate = rng.random() if faults.joinpath("weather").exists() else 1.0
        if fate < 0.1:
            post(link, *given)[1].release()
            raise Unreachable("the answer is lost")
        if fate < 0.2:
            threading.Timer(LATE_S, in_vain, (post, link, *given)).start()
            raise Unreachable("it took too long")
        return post(link, *given)

    return instead


def in_vain(post: Post, *given: Any) -> None:
    """No caller waits for the answer any more."""
    try:
        post(*given)[1].release()
    except ShoalError as error:
        sys.stderr.write(f"late: {error}\n")


def main(point: str, nth: int) -> int:
    """Run a node there."""
    name = os.environ["SHOAL_EDGE__NAME"]
    bad = on_a_bad_network(PeerLink._post, name, Path(os.environ["FAULTS"]), random.Random(f"{name}/{os.getpid()}"))
    PeerLink._post = bad  # type: ignore[method-assign]
    return edge_process.main(point, nth)
