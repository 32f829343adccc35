"""A node's log on its way to the coordinator: beside everything else, whatever becomes of it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from typing import Any, Self

import pytest

from shoal.core.errors import NotAllowed, Refused, ShoalError, Unreachable
from shoal.runtime.observability.log_buffer import LogRecord
from shoal_edge_client.telemetry import log_shipping as module
from shoal_edge_client.telemetry.log_shipping import LogShipper
from tests.support.waiting import until


class FakeClient:
    """Takes lines, or raises what it was told to."""

    def __init__(self) -> None:
        self.credential, self.link = "", self
        self.batches: list[tuple[str, list[str], int]] = []
        self.used: list[str] = []
        self.answers: list[ShoalError | float] = []
        self.gate = threading.Event()
        self.gate.set()
        self.aborted = False

    def logs(self, incarnation: str, lines: list[dict[str, Any]], dropped: int, read_s: float) -> float:
        assert 0 < read_s <= 30, "every request ends"
        self.used.append(self.credential)
        self.gate.wait(60)
        answer = self.answers.pop(0) if self.answers else 0.0
        if isinstance(answer, ShoalError):
            raise answer
        self.batches.append((incarnation, [line["text"] for line in lines], dropped))
        return answer

    def abort(self) -> None:
        self.aborted = True
        self.gate.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held."""

    @property
    def said(self) -> list[str]:
        return [text for _, texts, _ in self.batches for text in texts]


class Bench:
    def __init__(self) -> None:
        self.client, self.credential = FakeClient(), "shn_x"
        self.shipping = LogShipper("info", lambda: self.client, lambda: self.credential)  # type: ignore[arg-type,return-value]
        self.log = logging.getLogger("test")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(module, "EVERY_S", 0.005)
    monkeypatch.setattr(module, "PAUSE_S_MAX", 0.02)
    monkeypatch.setattr(logging.getLogger(), "level", logging.DEBUG)
    made = Bench()
    made.shipping.start()
    yield made
    made.client.gate.set()
    made.shipping.stop()


def test_lines_arrive_in_their_order(bench: Bench) -> None:
    for number in range(5):
        bench.log.info("line %d", number)
    until("all lines", lambda: len(bench.client.said) == 5)
    assert bench.client.said == [f"line {number}" for number in range(5)]
    assert {incarnation for incarnation, _, _ in bench.client.batches} == {bench.shipping._incarnation}


@pytest.mark.parametrize("error", [Unreachable("gone"), NotAllowed("revoked")])
def test_a_batch_is_sent_until_it_arrives(bench: Bench, error: ShoalError) -> None:
    bench.client.answers = [error] * 3
    bench.log.info("whole")
    until("the line", lambda: bench.client.said)
    assert bench.client.said == ["whole"]
    assert len(bench.client.used) == 4


def test_a_batch_that_is_refused_is_counted_as_lost(bench: Bench) -> None:
    bench.client.answers = [Refused("too long", code="request.invalid")]
    bench.log.info("refused")
    until("the try", lambda: bench.client.used)
    bench.log.info("after")
    until("the next", lambda: bench.client.said)
    assert bench.client.said == ["after"]
    assert sum(dropped for _, _, dropped in bench.client.batches) == 1


def test_nothing_is_sent_before_the_coordinator_knows_the_node(bench: Bench) -> None:
    bench.credential = ""
    bench.log.info("early")
    bench.credential = "shn_y"
    until("the line", lambda: bench.client.said == ["early"])
    assert bench.client.used == ["shn_y"]


def test_a_coordinator_that_does_not_answer_holds_nobody_up(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FINAL_SEND_S", 0.05)
    bench.client.gate.clear()
    bench.log.info("first")
    until("the request", lambda: bench.client.used)
    for number in range(6_000):  # the logging thread does not wait
        bench.log.info("line %d", number)
    assert len(bench.shipping.lines) == 5000
    bench.shipping.stop()  # nor does the end of the process
    assert bench.client.aborted


def test_the_last_lines_are_sent_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "level", logging.DEBUG)
    bench = Bench()
    bench.shipping.start()
    bench.log.info("the last word")
    bench.shipping.stop()
    assert bench.client.said == ["the last word"]


def test_its_own_lines_are_not_shipped(bench: Bench) -> None:
    logging.getLogger(module.OWN).error("the coordinator does not answer")
    bench.log.info("mine")
    until("the line", lambda: bench.client.said)
    assert bench.client.said == ["mine"]


def test_ages_are_measured_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    (told,) = module._json_rows([LogRecord(7, 97.5, 20, "x")])
    assert told["age_s"] == 2.5
