"""The limit of files that a process may have open. Each connection is one, and the soft limit is often 1024."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

resource: Any = importlib.import_module("resource") if os.name == "posix" else None  # Windows has no such limit

SPARE = 256
"""Files that a server needs beside its connections: its database, models that are read and updates that are written."""

DARWIN_MAX = 10_240
"""macOS takes no higher soft limit, whatever its hard limit says."""


def raise_limit() -> int:
    """Raise this process's soft limit of open files to the hard one, and return it."""
    if resource is None:
        return sys.maxsize
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(_number(hard), DARWIN_MAX) if sys.platform == "darwin" else _number(hard)
    if _number(soft) < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard if wanted == _number(hard) else wanted, hard))
    return max(_number(soft), wanted)


def connections_within(limit: int) -> int:
    """Return how many connections that limit leaves room for, at least one."""
    return max(1, limit - min(SPARE, limit // 2))


def _number(limit: int) -> int:
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit
