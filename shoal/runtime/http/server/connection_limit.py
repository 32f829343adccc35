"""How many connections may be open at once: `connections_max`, or fewer where the limit of open files is lower."""

from __future__ import annotations

import time

import structlog

from shoal.runtime.open_files import SPARE, connections_within, raise_limit
from shoal_coordinator.metrics import Metrics

log = structlog.get_logger()

LOG_S = 30.0
"""Refusals are logged at most once in that time, with their number."""

SILENT_MAX = SPARE // 2
"""So many connections beyond the limit are kept until their first request can be answered; more are told at once."""

HINT = "try again in a moment; operators raise connections_max of the coordinator, and its limit of open files with it"


class ConnectionLimit:
    """Raises the limit of open files as far as that goes when it is made, and warns where that is too little."""

    def __init__(self, connections_max: int, metrics: Metrics) -> None:
        files = raise_limit()
        self.most = min(connections_max, connections_within(files))
        self._metrics = metrics
        self._logged_at, self._since = float("-inf"), 0
        metrics.connections_max.set(self.most)
        if self.most < connections_max:
            log.warning(
                "fewer connections than connections_max",
                connections=self.most,
                connections_max=connections_max,
                open_files_max=files,
                hint="raise the hard limit of open files (ulimit -Hn, LimitNOFILE of systemd, ulimits of Docker)",
            )

    @property
    def text(self) -> str:
        """Say why a connection is refused."""
        return f"more than {self.most} connections are open"

    def refuse(self) -> None:
        """Count a refused connection, and log that there are some."""
        self._metrics.connections_refused.inc()
        self._since += 1
        if time.monotonic() - self._logged_at > LOG_S:
            log.warning("connections are refused", why=self.text, refused=self._since, hint=HINT)
            self._logged_at, self._since = time.monotonic(), 0
