"""Trying again: with growing, jittered pauses, as long as the other side asks for where it does, or not at all.

Full jitter (each pause is uniform between nothing and the bound) spreads a thousand nodes that lost the same
coordinator. The loop itself is stamina's, whose log entries say what is tried again, why and when.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import stamina

from shoal.core.errors import Unreachable
from shoal.runtime.threads import in_thread

T = TypeVar("T")

RETRY_AFTER_S_MAX = 300.0
"""The longest pause that another side can ask for."""

LASTING = {"tls.untrusted", "tls.refused", "tls.failed", "network.closed"}
"""Ways of not being reached that time does not heal."""


@dataclass(frozen=True)
class Backoff:
    """Times between tries: at most `first_s` before the second, doubling up to `most_s`; `give_up_s` 0: no end."""

    first_s: float = 0.5
    most_s: float = 30.0
    give_up_s: float = 0.0

    def pause_s(self, tried: int, error: Exception) -> float:
        """Return the seconds to wait after that many tries and that error."""
        asked = min(getattr(error, "retry_after_s", None) or 0.0, RETRY_AFTER_S_MAX)
        bound = min(self.most_s, self.first_s * 2.0 ** min(tried - 1, 60))
        return asked + random.uniform(0.0, bound)


def passes(error: Exception) -> bool:
    """Return whether a retry may help."""
    if getattr(error, "retry_after_s", None) is not None:
        return True
    return isinstance(error, Unreachable) and error.code not in LASTING


def hook(backoff: Backoff) -> Callable[[Exception], bool | float]:
    """Return stamina's hook: False to give up, or seconds to wait."""
    tried = 0

    def after(error: Exception) -> bool | float:
        nonlocal tried
        tried += 1
        return backoff.pause_s(tried, error) if passes(error) else False

    return after


async def call_with_retries(backoff: Backoff, call: Callable[[], T]) -> T:
    """Make a blocking call in a thread until it succeeds, or fails for good.

    stamina's loop begins with the first failure: most calls succeed at once, and it costs more than they do.
    """
    try:
        return await in_thread(call)
    except Exception as error:  # noqa: BLE001 - what to do about it is decided below
        failure = error
    give_up_s = backoff.give_up_s or None
    async for attempt in stamina.retry_context(on=hook(backoff), attempts=None, timeout=give_up_s):
        with attempt:
            if attempt.num == 1:
                raise failure
            return await in_thread(call)
    raise AssertionError("stamina raises the last error or lets a try succeed")


def attempts(backoff: Backoff) -> Iterator[stamina.Attempt]:
    """Yield attempts for blocking code: `for attempt in attempts(backoff): with attempt: …`."""
    yield from stamina.retry_context(on=hook(backoff), attempts=None, timeout=backoff.give_up_s or None)
