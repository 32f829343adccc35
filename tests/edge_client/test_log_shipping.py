"""A node's log on its way to the coordinator: beside everything else, whatever becomes of it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from typing import Any, Self

import pytest

from shoal.core.errors import NotAllowed, Refused, ShoalError, Unreachable
from shoal.runtime.log_lines import Line
from shoal_edge_client import shipping as module
from shoal_edge_client.shipping import Shipping
from tests.coordinator.server import until


class FakeLink:
    """Takes lines, or raises what it was told to."""

    def __init__(self) -> None:
        self.credential = ""
        self.batches: list[tuple[str, list[str], int]] = []
        self.used: list[str] = []
        self.answers: list[ShoalError | float] = []
        self.gate = threading.Event()
        self.gate.set()
        self.aborted = False

    def logs(self, boot: str, lines: list[dict[str, Any]], dropped: int, read_s: float) -> float:
        assert 0 < read_s <= 30, "every request ends"
        self.used.append(self.credential)
        self.gate.wait(60)
        answer = self.answers.pop(0) if self.answers else 0.0
        if isinstance(answer, ShoalError):
            raise answer
        self.batches.append((boot, [line["text"] for line in lines], dropped))
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
        self.link, self.credential = FakeLink(), "shn_x"
        self.shipping = Shipping("info", lambda: self.link, lambda: self.credential)  # type: ignore[arg-type,return-value]
        self.log = logging.getLogger("test")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(module, "EVERY_S", 0.005)
    monkeypatch.setattr(module, "PAUSE_S_MAX", 0.02)
    monkeypatch.setattr(logging.getLogger(), "level", logging.DEBUG)
    made = Bench()
    made.shipping.begin()
    yield made
    made.link.gate.set()
    made.shipping.end()


def test_lines_arrive_in_their_order(bench: Bench) -> None:
    for number in range(5):
        bench.log.info("line %d", number)
    until("all lines", lambda: len(bench.link.said) == 5)
    assert bench.link.said == [f"line {number}" for number in range(5)]
    assert {boot for boot, _, _ in bench.link.batches} == {bench.shipping._boot}


@pytest.mark.parametrize("error", [Unreachable("gone"), NotAllowed("revoked")])
def test_a_batch_is_sent_until_it_arrives(bench: Bench, error: ShoalError) -> None:
    bench.link.answers = [error] * 3
    bench.log.info("whole")
    until("the line", lambda: bench.link.said)
    assert bench.link.said == ["whole"]
    assert len(bench.link.used) == 4


def test_a_batch_that_is_refused_is_counted_as_lost(bench: Bench) -> None:
    bench.link.answers = [Refused("too long", code="request.invalid")]
    bench.log.info("refused")
    until("the try", lambda: bench.link.used)
    bench.log.info("after")
    until("the next", lambda: bench.link.said)
    assert bench.link.said == ["after"]
    assert sum(dropped for _, _, dropped in bench.link.batches) == 1


def test_an_earlier_release_is_left_alone(bench: Bench) -> None:
    bench.link.answers = [Refused("no such path", code="path.unknown")]
    bench.log.info("one")
    until("the thread to be at its end", lambda: bench.link.used and bench.shipping._given_up)
    bench.log.info("two")
    bench.shipping.end()
    assert len(bench.link.used) == 1


def test_nothing_is_sent_before_the_coordinator_knows_the_node(bench: Bench) -> None:
    bench.credential = ""
    bench.log.info("early")
    bench.credential = "shn_y"
    until("the line", lambda: bench.link.said == ["early"])
    assert bench.link.used == ["shn_y"]


def test_a_coordinator_that_does_not_answer_holds_nobody_up(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FAREWELL_S", 0.05)
    bench.link.gate.clear()
    bench.log.info("first")
    until("the request", lambda: bench.link.used)
    for number in range(20_000):  # whoever logs does not wait
        bench.log.info("line %d", number)
    assert len(bench.shipping.lines) == 5000
    bench.shipping.end()  # nor does the end of the process
    assert bench.link.aborted


def test_the_last_lines_are_sent_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "level", logging.DEBUG)
    bench = Bench()
    bench.shipping.begin()
    bench.log.info("the last word")
    bench.shipping.end()
    assert bench.link.said == ["the last word"]


def test_its_own_lines_are_not_shipped(bench: Bench) -> None:
    logging.getLogger(module.OWN).error("the coordinator does not answer")
    bench.log.info("mine")
    until("the line", lambda: bench.link.said)
    assert bench.link.said == ["mine"]


def test_ages_are_measured_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    (told,) = module._told([Line(7, 97.5, 20, "x")])
    assert told["age_s"] == 2.5
