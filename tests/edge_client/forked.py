"""Node processes that begin in a few hundredths of a second: forked from one that has imported everything."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path

CHILD = "tests.edge_client.child"
_FORKS = get_context("forkserver")
_FORKS.set_forkserver_preload([CHILD, "edge_client.peering.node", "peer.app", "shoal.learn.loading", __name__])


def begin(module: str, given: Mapping[str, str], log: Path, point: str, nth: int) -> ForkServerProcess:
    """Begin the process of a node: `main(point, nth)` of that module, with these settings in its environment."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **given}
    made = _FORKS.Process(target=_be_a_node, args=(module, environment, log, point, nth), daemon=True)
    made.start()
    return made


def _be_a_node(module: str, environment: Mapping[str, str], log: Path, point: str, nth: int) -> None:
    """Run as its whole life."""
    os.environ.clear()
    os.environ.update(environment)
    place = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    for ours in (1, 2):
        os.dup2(place, ours)
    raise SystemExit(import_module(module).main(point, nth))
