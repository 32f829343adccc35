"""The edge client: a node's process around `shoal.core.client.worker`. Training stays on the machine that has the data.

import shoal

shoal.join("http://coordinator:8080", learner="mine.py:learner", token="sht_…")

with shoal.join("http://coordinator:8080", token="sht_…") as node:
    for task in node.tasks(model):
        ...
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    from shoal.core.algorithm.learner import Learner
    from shoal_edge_client.joined_node import JoinedNode

__all__ = ["join"]


@overload
def join(url: str, *, learner: None = None, token: str | None = None, **more: Any) -> JoinedNode: ...


@overload
def join(url: str, *, learner: Learner | str, token: str | None = None, **more: Any) -> int: ...


def join(
    url: str,
    *,
    learner: Learner | str | None = None,
    token: str | None = None,
    token_file: str | Path | None = None,
    name: str | None = None,
    jobs: Sequence[str] | None = None,
    **more: Any,
) -> int | JoinedNode:
    """Take part in a coordinator's jobs with this machine's data, until they have ended or Ctrl-C.

    `learner`: an object with the methods of `shoal.core.algorithm.learner.Learner`, or the name of one. Without it,
    nothing runs yet: the result is a node for a training loop of your own (`shoal.loop`). `token`: one-time token,
    needed the first time; `token_file`: the file that holds it. `jobs`: only these jobs; return when they have ended.
    `more`: other fields of `shoal_edge_client.settings.EdgeSettings`, such as `device` and `state_dir`. Parameters that
    are None come from the environment or the settings file.

    Returns 0 when the jobs have ended or on SIGTERM, and 130 on Ctrl-C. Raises `ShoalError`: `InvalidJob` for an object
    that is not a learner, `NotAllowed` for a wrong or revoked credential, `Unreachable` after `coordinator_timeout_s`,
    and other subclasses for other failures.
    """
    from shoal.configuration import load, read_secret
    from shoal.learn.loading import required_learner
    from shoal_edge_client.joined_node import JoinedNode
    from shoal_edge_client.process import run
    from shoal_edge_client.settings import EdgeSettings

    target = learner if isinstance(learner, str) else None
    if learner is not None and target is None:
        required_learner(learner, "learner")
    if token_file is not None:
        token = read_secret(token_file, "token_file")
    given = {"url": url, "learner": target, "token": token, "name": name, "jobs": jobs}
    settings = load(EdgeSettings, "edge", given={**given, **more})
    return JoinedNode(settings) if learner is None else run(settings, None if isinstance(learner, str) else learner)
