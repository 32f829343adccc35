"""Ports for a program that a test starts or restarts at an address it knows beforehand."""

from __future__ import annotations

import socket
from collections import deque

from shoal.runtime.http.server.serving import listen

RESERVED_MAX = 64
_reserved: deque[socket.socket] = deque()


def free_port() -> int:
    """Return a port that the system gives to no other program before one listens there.

    Linux leaves a bound port out when it chooses one, and lets another socket bind it too while none listens, where
    both have SO_REUSEADDR.
    """
    made = listen("127.0.0.1", 0)
    _reserved.append(made)
    if len(_reserved) > RESERVED_MAX:
        _reserved.popleft().close()
    return int(made.getsockname()[1])


def free_ports(count: int) -> list[int]:
    """Return ports as `free_port` does."""
    return [free_port() for _ in range(count)]
