"""Traces, from a node's training to the fold of its update."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from shoal.extras import install_hint
from shoal.runtime.observability import tracing
from shoal_edge_client.agent import Agent
from shoal_edge_client.settings import EdgeSettings
from tests.support.coordinator import Inside
from tests.support.learners import VectorLearner
from tests.support.waiting import until

LARGE = 100_000


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """Record the spans of node and coordinator, both in this process."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.use(tracing.Recording(provider))
    yield exporter
    tracing.use(tracing.Tracing())


def take_part(coordinator: Inside, folder: Path, size: int) -> None:
    """One node's whole job."""
    coordinator.begin("a", nodes=1, rounds=2)
    given = {"url": coordinator.url, "token": coordinator.token(), "name": "n0", "state_dir": folder, "jobs": ["a"]}
    agent = Agent(EdgeSettings.model_validate({**given, "poll_wait_s": 5.0}), VectorLearner(size))
    asyncio.run(asyncio.wait_for(agent.run(), 60))
    until("the job to end", lambda: coordinator.job("a")["ended_at"])


def ids(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


@pytest.mark.parametrize("size", [10, LARGE], ids=["with its report", "before its report"])
def test_one_trace_goes_from_the_order_to_the_new_version(
    coordinator: Inside, spans: InMemorySpanExporter, tmp_path: Path, size: int
) -> None:
    take_part(coordinator, tmp_path / "edge", size)
    trace = int(tracing.current.round("a", 0)[3:35], 16)
    mine: dict[str, list[ReadableSpan]] = {}
    for span in spans.get_finished_spans():
        if ids(span)[0] == trace:
            mine.setdefault(span.name, []).append(span)

    def parent(name: str) -> int:
        assert mine[name][-1].parent is not None
        return mine[name][-1].parent.span_id

    root = int(tracing.current.round("a", 0)[36:52], 16)
    assert [parent(name) for name in ("train", "send", "close", "round")] == [root] * 4
    at_node, at_coordinator = mine["receive"][0], mine["receive"][-1]
    assert at_node.parent is not None
    assert at_node.parent.span_id == root
    assert parent("receive") == ids(mine["send"][-1])[1]
    assert parent("verify") == parent("fold") == ids(at_coordinator)[1]
    times = [at_node, mine["train"][-1], mine["send"][-1], at_coordinator, mine["verify"][-1], mine["fold"][-1]]
    begun = [span.start_time or 0 for span in [*times, mine["close"][-1]]]
    assert begun == sorted(begun)
    assert dict(mine["train"][-1].attributes or {}) == {"shoal.job": "a", "shoal.node": "n0", "shoal.version": 0}


def test_the_last_evaluation_is_a_span_of_its_own(
    coordinator: Inside, spans: InMemorySpanExporter, tmp_path: Path
) -> None:
    take_part(coordinator, tmp_path / "edge", 10)
    assert [dict(s.attributes or {})["shoal.version"] for s in spans.get_finished_spans() if s.name == "evaluate"] == [
        2
    ]


ONES, ZEROS = "1" * 32, "0" * 32


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x" * 10_000,
        f"00-{ZEROS}-{ONES[:16]}-01",
        f"00-{ONES}-{ZEROS[:16]}-01",
        f"01-{ONES}-{ONES[:16]}-01",
        f"00-{ONES}-{ONES[:16]}-0\n",
        f"00-{'A' * 32}-{ONES[:16]}-01",
    ],
)
def test_a_parent_has_one_form(text: str) -> None:
    assert tracing.parent_of(text) == ""
    assert tracing.parent_of(f"00-{'1' * 32}-{'a' * 16}-01")


def test_what_is_remembered_is_bounded(spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "PARENTS_MAX", 2)
    for number in range(3):
        tracing.current.remember_parent(number, f"parent {number}")
    assert [tracing.current.recall_parent(number) for number in range(3)] == ["", "parent 1", "parent 2"]
    assert tracing.current.recall_parent(2) == ""


UNTRACED = """
import sys
from shoal.runtime.observability import tracing
tracing.configure("edge")
import shoal_edge_client.agent
print(tracing.current.on, tracing.header() == "", any(name.startswith("opentelemetry") for name in sys.modules))
"""


def test_nothing_is_loaded_where_nobody_asks_for_traces() -> None:
    done = subprocess.run([sys.executable, "-c", UNTRACED], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["False", "True", "False"]


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[dict[str, Any]] = []

    class Log:
        def warning(self, _event: str, **more: Any) -> None:
            said.append(more)

    monkeypatch.setattr(tracing, "log", Log())
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    tracing.configure("edge")
    assert not tracing.current.on
    assert said[0]["hint"] == install_hint("otel")
