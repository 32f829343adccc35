"""Telling somebody elsewhere of alerts, and of jobs that have ended: a signed POST, tried again with growing pauses;
nothing waits for it.

    Shoal-Signature: t=1767323045,v1=HEX     HMAC-SHA256 of "t.body" under the shared secret

Redirects are not followed, wherever they lead. The certificate is checked; plain http goes to private addresses alone.
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
from shoal.runtime.http import Link
from shoal.runtime.threads import in_thread

log = structlog.get_logger()

WAITING_MAX = 200
"""Messages that wait for a receiver that does not answer; the oldest give way."""
READ_S = 10.0
FIRST_S, MOST_S = 1.0, 300.0
TRIES_MAX = 12
"""About half an hour; then a message is given up."""
ANSWER_BYTES_MAX = 64 * 1024


def signature(secret: str, body: bytes, at: int) -> str:
    """The header's value: a receiver computes the same, and refuses what is old."""
    made = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={made}"


class Webhook:
    """Messages to one address. `tell` may be called at any time; `run` delivers them, one after the other."""

    def __init__(self, url: str, secret: str) -> None:
        self._link, self._secret = Link(url, read_s=READ_S), secret
        self._waiting: deque[dict[str, Any]] = deque(maxlen=WAITING_MAX)
        self._bell = asyncio.Event()

    def tell(self, message: dict[str, Any]) -> None:
        """Have a message delivered."""
        self._waiting.append(message)
        self._bell.set()

    async def run(self) -> None:
        """Deliver, until cancelled."""
        while True:
            await self._bell.wait()
            self._bell.clear()
            while self._waiting:
                await self._deliver(self._waiting.popleft())

    def close(self) -> None:
        self._link.abort()
        self._link.close()

    async def _deliver(self, message: dict[str, Any]) -> None:
        pause_s = FIRST_S
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
            pause_s = min(2 * pause_s, MOST_S)
        log.warning("a message to the webhook was not delivered", what=message.get("event"), alert=message.get("id"))

    def _post(self, message: dict[str, Any]) -> None:
        body = json.dumps(message).encode()
        headers = {"Content-Type": "application/json"}
        if self._secret:
            headers["Shoal-Signature"] = signature(self._secret, body, int(time.time()))
        with self._link.exchange("POST", "", headers=headers, content=body) as answer:
            answer.read(ANSWER_BYTES_MAX)
