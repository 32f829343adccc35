"""Webhooks for alerts and ended jobs: a signed POST, retried with growing pauses; nothing waits for it.

Shoal-Signature: t=1767323045,v1=HEX     HMAC-SHA256 of "t.body" under the shared secret

Redirects are not followed. The certificate is checked; plain http goes to private addresses alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from collections import deque
from typing import Any

import structlog

from shoal.core.errors import Refused, ShoalError
from shoal.runtime.http.client import Link
from shoal.runtime.threads import in_thread

log = structlog.get_logger()

QUEUE_MAX = 200
"""Messages that wait for a receiver that does not answer; the oldest give way."""
READ_S = 10.0
RETRY_MIN_S, RETRY_MAX_S = 1.0, 300.0
TRIES_MAX = 12
"""About half an hour; then a message is given up."""
ANSWER_BYTES_MAX = 64 * 1024


def signature(secret: str, body: bytes, at: int) -> str:
    """Return the header's value: a receiver computes the same, and refuses old ones."""
    digest = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"


class Webhook:
    """Messages to one address. `enqueue` may be called at any time; `run` delivers them, one after the other."""

    def __init__(self, url: str, secret: str) -> None:
        self._link, self._secret = Link(url, read_s=READ_S), secret
        self._queue: deque[dict[str, Any]] = deque(maxlen=QUEUE_MAX)
        self._has_messages = asyncio.Event()

    def enqueue(self, message: dict[str, Any]) -> None:
        """Have a message delivered."""
        self._queue.append(message)
        self._has_messages.set()

    async def run(self) -> None:
        """Deliver, until cancelled."""
        while True:
            await self._has_messages.wait()
            self._has_messages.clear()
            while self._queue:
                await self._deliver(self._queue.popleft())

    def close(self) -> None:
        self._link.abort()
        self._link.close()

    async def _deliver(self, message: dict[str, Any]) -> None:
        pause_s = RETRY_MIN_S
        for _ in range(TRIES_MAX):
            try:
                await in_thread(lambda: self._post(message))
            except Refused as error:  # it will not take it, however often
                log.warning("the webhook refuses a message", why=error.message)
                return
            except ShoalError as error:
                log.info("the webhook does not take a message; trying again", why=error.message, seconds=pause_s)
            else:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)
        log.warning("a message to the webhook was not delivered", what=message.get("event"), alert=message.get("id"))

    def _post(self, message: dict[str, Any]) -> None:
        body = json.dumps(message).encode()
        headers = {"Content-Type": "application/json"}
        if self._secret:
            headers["Shoal-Signature"] = signature(self._secret, body, int(time.time()))
        with self._link.exchange("POST", "", headers=headers, content=body) as answer:
            answer.read(ANSWER_BYTES_MAX)
