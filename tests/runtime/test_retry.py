"""When to try again, and when not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from shoal.core.errors import NotAllowed, Refused, ShoalError, StorageFailed, Unreachable
from shoal.runtime.http.client import TryLater, TryLaterFull
from shoal.runtime.http.retry import RETRY_AFTER_S_MAX, Backoff, attempts, call_with_retries, passes
from tests.support.waiting import PATIENCE_S, pause_async

QUICK = Backoff(first_s=0.001, most_s=0.002)


def later(seconds: float) -> TryLater:
    return TryLater("later", code="x", hint="", retry_after_s=seconds)


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (Unreachable("x"), True),
        (Unreachable("x", code="protocol.foreign"), True),
        (Unreachable("x", code="tls.untrusted"), False),
        (Unreachable("x", code="tls.failed"), False),
        (later(0.0), True),
        (TryLaterFull("full", code="x", hint="", retry_after_s=0.0), True),
        (StorageFailed("our own disk"), False),
        (NotAllowed("x"), False),
        (Refused("x"), False),
        (ValueError("x"), False),
    ],
)
def test_which_errors_pass(error: Exception, again: bool) -> None:
    assert passes(error) is again


def test_pauses_grow_and_are_jittered_up_to_a_bound() -> None:
    backoff = Backoff(first_s=0.5, most_s=30.0)
    for tried, bound in ((1, 0.5), (2, 1.0), (3, 2.0), (7, 30.0), (1000, 30.0)):
        pauses = [backoff.pause_s(tried, Unreachable("x")) for _ in range(300)]
        assert 0.0 <= min(pauses) < 0.1 * bound
        assert 0.9 * bound < max(pauses) <= bound


def test_what_is_asked_for_is_obeyed_within_reason() -> None:
    assert 7.0 <= QUICK.pause_s(1, later(7.0)) <= 7.002
    assert QUICK.pause_s(1, later(1e9)) <= RETRY_AFTER_S_MAX + 0.002


def failing(times: int, error: Exception) -> Callable[[], int]:
    calls = []

    def call() -> int:
        calls.append(1)
        if len(calls) <= times:
            raise error
        return len(calls)

    return call


def test_it_goes_on_until_it_succeeds() -> None:
    assert asyncio.run(call_with_retries(QUICK, failing(20, Unreachable("x")))) == 21


def test_another_error_comes_through_at_once() -> None:
    with pytest.raises(Refused):
        asyncio.run(call_with_retries(QUICK, failing(1, Refused("x"))))


def test_it_gives_up_with_the_last_error() -> None:
    with pytest.raises(Unreachable, match="the very one"):
        asyncio.run(
            call_with_retries(Backoff(0.001, 0.002, give_up_s=0.05), failing(10**6, Unreachable("the very one")))
        )


def test_code_that_blocks_tries_too() -> None:
    call, found = failing(3, Unreachable("x")), None
    for attempt in attempts(QUICK):
        with attempt:
            found = call()
    assert found == 4


def test_waiting_can_be_cancelled() -> None:
    async def main() -> None:
        waiting = asyncio.create_task(call_with_retries(Backoff(first_s=1e6, most_s=1e6), failing(1, Unreachable("x"))))
        await pause_async()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_errors_keep_what_they_say() -> None:
    error: ShoalError = later(3.0)
    assert (error.message, error.code) == ("later", "x")
