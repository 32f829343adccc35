"""Showing the coordinator what this node logs: a thread and a connection of their own, so that nothing waits for them.

Lines are taken from a bounded queue in batches. While the coordinator does not answer they wait there, the oldest give
way, and how many did is told. Nothing here touches the event loop: not a poll, not a report, not the training.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

import structlog

from shoal.core.errors import Refused, ShoalError
from shoal.runtime.http.node_client import NodeClient
from shoal.runtime.observability.log_buffer import LogBuffer, LogRecord

BATCH_LINES = 500
BATCH_BYTES = 256 * 1024
EVERY_S = 1.0
"""Interval in seconds at which new lines are sent."""
READ_S = 10.0
"""Patience for an answer."""
PAUSE_S_MAX = 60.0
FINAL_SEND_S = 1.0
"""Longest time in seconds by which the last lines delay the end of the process."""

OWN = "edge_client.shipping"


class LogShipper:
    """A thread that ships log lines from `start` to `stop`. `open_client` opens its own client; `credential` returns
    "" until the coordinator knows this node."""

    def __init__(self, level: str, open_client: Callable[[], NodeClient], credential: Callable[[], str]) -> None:
        self.lines = LogBuffer(logging.getLevelName(level.upper()), without=(OWN,))
        self._open, self._credential = open_client, credential
        self._incarnation = secrets.token_hex(8)
        self._batch: list[LogRecord] = []
        self._dropped = 0
        self._ending = threading.Event()
        self._client: NodeClient | None = None
        self._thread = threading.Thread(target=self._run, name="shoal-log-shipping", daemon=True)
        self._log: Any = structlog.get_logger(OWN)

    def start(self) -> None:
        """Keep what is logged from now on, and ship it."""
        logging.getLogger().addHandler(self.lines)
        self._thread.start()

    def stop(self) -> None:
        """Send what is left, if that can be done at once."""
        logging.getLogger().removeHandler(self.lines)
        self._ending.set()
        self._thread.join(FINAL_SEND_S)
        if self._client is not None:
            self._client.abort()

    def _run(self) -> None:
        with self._open() as client:
            self._client, pause_s = client, EVERY_S
            while not self._ending.wait(pause_s):
                pause_s = self._send_batch(client, pause_s)
            while self._send_batch(client, EVERY_S) == 0.0:
                pass

    def _send_batch(self, client: NodeClient, pause_s: float) -> float:
        """Send a batch, if there is one; how long to wait then: 0 where more is ready."""
        client.link.credential = self._credential()
        if not client.link.credential:
            return EVERY_S
        if not self._batch:
            self._batch, self._dropped = self.lines.take(BATCH_LINES, BATCH_BYTES)
        if not self._batch and not self._dropped:
            return EVERY_S
        try:
            wait_s = client.logs(self._incarnation, _json_rows(self._batch), self._dropped, READ_S)
        except Refused as error:
            self._log.debug("the coordinator takes no log lines", why=error.message)
            self.lines.lose(len(self._batch) + self._dropped)
            wait_s = PAUSE_S_MAX
        except ShoalError as error:  # kept, and sent again
            self._log.debug("log lines not sent; trying again", why=error.message)
            return min(2 * max(pause_s, EVERY_S), PAUSE_S_MAX)
        self._batch, self._dropped = [], 0
        return max(wait_s, 0.0 if len(self.lines) >= BATCH_LINES else EVERY_S)


def _json_rows(batch: list[LogRecord]) -> list[dict[str, Any]]:
    """Return log records as JSON values."""
    now = time.monotonic()
    return [
        {
            "n": line.number,
            "age_s": round(max(0.0, now - line.born), 3),
            "level": line.level,
            "text": line.text,
            "job": line.job,
            "round": line.round,
            "fields": line.fields,
        }
        for line in batch
    ]
