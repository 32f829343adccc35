"""The limit of open connections: as many as a server is given, or fewer if the limit of open files is lower."""

from __future__ import annotations

import time

import structlog

from shoal.runtime.http.server.problem_documents import closing_bytes, problem
from shoal.runtime.open_files import SPARE, connections_within, raise_limit

log = structlog.get_logger()

LOG_S = 30.0
"""Refusals are logged at most once in that time, with their number."""

SILENT_MAX = SPARE // 2
"""Connections beyond the limit that are kept until their first request can be answered; more are refused at once."""

CODE = "connections.full"
HINT = "try again in a moment; operators raise connections_max of the coordinator, and the limit of open files with it"


class ConnectionLimit:
    """The limit of a server's open connections. It raises the limit of open files, and warns if that is too little."""

    def __init__(self, connections_max: int) -> None:
        files = raise_limit()
        self.most = min(connections_max, connections_within(files))
        self._logged_at, self._since = float("-inf"), 0
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

    @property
    def answer(self) -> bytes:
        """Return the answer on a connection that is refused before its first request."""
        return closing_bytes(problem(503, self.text, CODE, HINT, "/", retry_after_s=2))

    def log_refusal(self) -> None:
        """Log that connections are refused, at most once in `LOG_S`."""
        self._since += 1
        if time.monotonic() - self._logged_at > LOG_S:
            log.warning("connections are refused", why=self.text, refused=self._since, hint=HINT)
            self._logged_at, self._since = time.monotonic(), 0
