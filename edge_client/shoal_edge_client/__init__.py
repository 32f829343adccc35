"""The edge client: a node's process around `shoal.core.worker`. Training stays on the machine that has the data.

import shoal

shoal.join("http://coordinator:8080", learner="mine.py:learner", token="sht_…")
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.core.learner import Learner

__all__ = ["join"]


def join(
    url: str,
    *,
    learner: Learner | str,
    token: str | None = None,
    name: str | None = None,
    jobs: Sequence[str] | None = None,
    state: Path | None = None,
    device: str | None = None,
    **more: Any,
) -> int:
    """Take part in a coordinator's jobs with this machine's data, until they have ended or Ctrl-C.

    `learner`: an object with the methods of `shoal.core.learner.Learner`, or the name of one. `token`: one-time token,
    needed the first time. `jobs`: take part in these alone, and return when they have ended; without it, go on.
    `more`: other fields of `shoal_edge_client.settings.EdgeSettings`. What is None comes from the environment or the
    configuration file.

    Returns 0 when the jobs have ended or on SIGTERM, 130 on Ctrl-C. Raises `ShoalError`: `InvalidJob` at once for what
    is no learner, `NotAllowed` when the credential is wrong or was revoked, `Unreachable` where `give_up_s` is set, and
    what else went wrong.
    """
    from shoal.learn.loading import required_learner
    from shoal.settings import load
    from shoal_edge_client.running import run
    from shoal_edge_client.settings import EdgeSettings

    target = learner if isinstance(learner, str) else None
    if target is None:
        required_learner(learner, "learner")
    given = {
        "url": url,
        "learner": target,
        "token": token,
        "name": name,
        "jobs": jobs,
        "state": state,
        "device": device,
    }
    settings = load(EdgeSettings, "edge", given={**given, **more})
    return run(settings, None if isinstance(learner, str) else learner)
