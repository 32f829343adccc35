"""What the types of a message cannot say: the ranges, lengths and alphabets of what a head may carry."""

from __future__ import annotations

import re
from typing import Any

from shoal.core.errors import InvalidPayload
from shoal.core.message import Change, Fail, Knock, Lease, Metrics, Order, Report, Status

METRICS_MAX = 64
WEIGHT_MAX = 1e15
COUNT_MAX = 2**53
TRACEBACK_MAX = 8000
"""Characters. A head has 64 KiB."""

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
"""Names of nodes and jobs: they stand in addresses, files and logs."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_METRIC = re.compile(r"[a-z0-9_]+(?:[./-][a-z0-9_]+){0,7}")


def is_digest(text: str) -> bool:
    """Whether a text is a SHA-256 in hexadecimal."""
    return _DIGEST.fullmatch(text) is not None


def check(found: Any) -> None:
    """What types cannot say: ranges, lengths and alphabets."""
    node = getattr(found, "node", None)
    if node is not None and not NAME.fullmatch(node):
        raise InvalidPayload(f"{node[:70]!r} is no name of a node", code="head.name")
    for ref in (getattr(found, "body", None), getattr(found, "base", None)):
        if ref is not None and not (is_digest(ref.digest) and 0 < ref.nbytes <= COUNT_MAX):
            raise InvalidPayload("a body is named by 64 hexadecimal digits and its length", code="head.digest")
    whole = (getattr(found, name, 0) for name in ("version", "seed", "rev", "until", "check"))
    if isinstance(found, Knock | Lease):
        _check_term(found)
    for number in (*_order_of(found), *whole):
        if not 0 <= number < 2**63:
            raise InvalidPayload(f"{number} is out of range", code="head.range")
    if isinstance(found, Report):
        _check_report(found)
    if isinstance(found, Fail) and len(found.traceback) > TRACEBACK_MAX:
        text = f"a traceback of {len(found.traceback)} characters; at most {TRACEBACK_MAX}"
        raise InvalidPayload(text, code="head.traceback")
    if isinstance(found, Status | Change):
        _check_names(found.values)
    if isinstance(found, Order):
        _check_names(found.numbers)


def _order_of(found: Any) -> tuple[int, ...]:
    for field in ("order", "id", "after", "away"):
        value = getattr(found, field, None)
        if isinstance(value, tuple):
            return value
    return ()


def _check_term(found: Knock | Lease) -> None:
    least = -1 if isinstance(found, Knock) else 0  # a node that only asks whether it is heard says -1
    if not least <= found.term <= COUNT_MAX:
        raise InvalidPayload(f"a term of {found.term}; {least} to {COUNT_MAX}", code="head.range")


def _check_report(report: Report) -> None:
    if not 0 <= report.weight <= WEIGHT_MAX:
        raise InvalidPayload(f"a weight of {report.weight}; 0 to {WEIGHT_MAX:g}", code="head.weight")
    _check_names(report.metrics)
    examples = report.metrics.get("eval/examples", 1.0)
    if not 0 <= examples <= WEIGHT_MAX:
        raise InvalidPayload(f"eval/examples is {examples}", code="head.metrics")


def _check_names(metrics: Metrics) -> None:
    if len(metrics) > METRICS_MAX:
        raise InvalidPayload(f"{len(metrics)} metrics; at most {METRICS_MAX}", code="head.metrics")
    for name in metrics:
        if len(name) > 64 or not _METRIC.fullmatch(name):
            raise InvalidPayload(f"{name[:70]!r} is no name of a metric", code="head.metrics")
