"""OpenTelemetry traces, from a node's training to the fold of its update. Without configuration nothing is loaded.

OpenTelemetry's variables turn it on: `OTEL_EXPORTER_OTLP_ENDPOINT` (or `…_TRACES_ENDPOINT`) is the target of spans,
`OTEL_TRACES_SAMPLER` their selection. The extra `otel` has the exporter.

coordinator  round ─────────────────────────────────────────────────────────────── close
node            └ receive ─ train or evaluate ─ send
coordinator                                       └ receive ─ verify ─ fsync ─ fold

All spans of a round are of one trace, whose id follows from the job and the version from which the round starts, so
nothing needs to be stored. A parent comes with a task or a report as W3C's header `traceparent`; any other form is
ignored.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import structlog

from shoal.extras import install_hint

log = structlog.get_logger()

HEADER = "traceparent"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
PARENTS_MAX = 10_000
"""Parents that are remembered until they are used; the oldest are forgotten first."""

_FORM = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})", re.ASCII)
_NOTHING: AbstractContextManager[str] = nullcontext("")
_header: ContextVar[str] = ContextVar("traceparent", default="")

Value = str | int | float


def parent_of(text: str) -> str:
    """Return a header's value if it has the form of W3C Trace Context, else nothing."""
    return text if len(text) == 55 and _FORM.fullmatch(text) else ""


class Tracing:
    """No traces."""

    on = False

    def span(self, name: str, parent: str, **attributes: Value) -> AbstractContextManager[str]:
        """Measure a block as a span. It gives its own `traceparent`, which requests in the block carry; empty: none."""
        del name, parent, attributes
        return _NOTHING

    def round(self, job: str, version: int) -> str:
        """Return the `traceparent` of the round of a job that starts from a version."""
        del job, version
        return ""

    def close(self, job: str, version: int, seconds: float, began_ns: int) -> None:
        """Tell of the round that made a version: how long it was open, and since when that is being written."""
        del job, version, seconds, began_ns

    def remember_parent(self, key: object, parent: str) -> None:
        """Remember the parent of what is done about something later."""
        del key, parent

    def recall_parent(self, key: object, *, keep: bool = False) -> str:
        """Return what was remembered, once."""
        del key, keep
        return ""


class Recording(Tracing):
    """Traces by a provider of OpenTelemetry's SDK."""

    on = True

    def __init__(self, provider: Any) -> None:
        self._tracer = provider.get_tracer("shoal")
        self._provider = provider
        self._parents: OrderedDict[object, str] = OrderedDict()
        self._lock = threading.Lock()

    def span(self, name: str, parent: str, **attributes: Value) -> AbstractContextManager[str]:
        return self._recorded(name, parent, attributes) if parent else _NOTHING

    @contextmanager
    def _recorded(self, name: str, parent: str, attributes: dict[str, Value]) -> Iterator[str]:
        with self._tracer.start_as_current_span(name, _context(parent), attributes=attributes) as span:
            token = _header.set(_trace_header(span.get_span_context()))
            try:
                yield _header.get()
            finally:
                _header.reset(token)

    def round(self, job: str, version: int) -> str:
        digest = hashlib.sha256(f"{job}/{version}".encode()).hexdigest()
        parent = f"00-{digest[:32]}-{digest[32:48]}-01"
        sampler = self._provider.sampler
        sampled = sampler.should_sample(None, int(digest[:32], 16), "round").decision.is_sampled()
        return parent if sampled else ""

    def close(self, job: str, version: int, seconds: float, began_ns: int) -> None:
        parent = self.round(job, version - 1)
        if parent:
            opened_ns, context = began_ns - int(seconds * 1e9), _context(parent)
            attributes = {"shoal.job": job, "shoal.version": version}
            around = self._tracer.start_span("round", context, attributes=attributes, start_time=opened_ns)
            self._tracer.start_span("close", context, attributes=attributes, start_time=began_ns).end()
            around.end(began_ns)

    def remember_parent(self, key: object, parent: str) -> None:
        if parent:
            with self._lock:
                self._parents[key] = parent
                self._parents.move_to_end(key)
                if len(self._parents) > PARENTS_MAX:
                    self._parents.popitem(last=False)

    def recall_parent(self, key: object, *, keep: bool = False) -> str:
        with self._lock:
            return self._parents.get(key, "") if keep else self._parents.pop(key, "")


current: Tracing = Tracing()
"""This process's."""


def header() -> str:
    """Return the value of the header `traceparent` of a request that is made now; empty: it has none."""
    return _header.get()


def now_ns() -> int:
    """Return the wall clock, as spans count it."""
    return time.time_ns()


def use(tracing: Tracing) -> None:
    """Let this process trace so from now on."""
    global current  # noqa: PLW0603 - one for the process, as with its log
    current = tracing


def configure(role: str) -> None:
    """Begin to trace, if OpenTelemetry's variables ask for that. `role`: the service's name, unless one is given."""
    off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if current.on or off or not any(os.environ.get(name) for name in ENDPOINTS):
        return
    try:
        exporter = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter").OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        log.warning("no traces", why=f"{error.name} is not installed", hint=install_hint("otel"))
        return
    name = os.environ.get("OTEL_SERVICE_NAME") or f"shoal-{role}"
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(BatchSpanProcessor(exporter()))
    use(Recording(provider))


def _context(parent: str) -> Any:
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

    found = _FORM.fullmatch(parent)
    assert found is not None
    trace, span, flags = (int(part, 16) for part in found.groups())
    return set_span_in_context(NonRecordingSpan(SpanContext(trace, span, True, TraceFlags(flags))), Context())


def _trace_header(context: Any) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
