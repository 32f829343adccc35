"""Ranges, lengths and alphabets of the fields of messages."""

from __future__ import annotations

import re
from typing import Any

from shoal.core.errors import InvalidPayload
from shoal.core.model.tree import DIGEST
from shoal.core.protocol.message import CoordinatorPing, Metrics
from shoal.core.protocol.metrics import METRIC_RULE, metrics_fault

WEIGHT_MAX = 1e15
COUNT_MAX = 2**53
TRACEBACK_MAX = 8000
"""Characters. A head has 64 KiB."""

WHOLE = ("version", "seed", "revision", "checks_allowed", "check", "turn", "round", "batch", "leg", "examples")
"""Fields with whole numbers that are not negative."""

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
"""Names of nodes and jobs: they stand in addresses, files and logs."""


def is_digest(text: str) -> bool:
    """Return whether a text is a SHA-256 in hexadecimal."""
    return DIGEST.fullmatch(text) is not None


def check(found: Any) -> None:
    """Raise `InvalidPayload` for a field out of range. The checks go by the names of fields, for all messages alike."""
    node = getattr(found, "node", None)
    if node is not None and not NAME.fullmatch(node):
        raise InvalidPayload(f"{node[:70]!r} is not a node's name", code="head.name")
    for ref in (getattr(found, "blob", None), getattr(found, "reference", None)):
        if ref is not None and not (is_digest(ref.digest) and 0 < ref.nbytes <= COUNT_MAX):
            raise InvalidPayload("a blob is named by 64 hexadecimal digits and its length", code="head.digest")
    whole = (getattr(found, name, 0) for name in WHOLE)
    for number in (*_task_of(found), *whole):
        if not 0 <= number < 2**63:
            raise InvalidPayload(f"{number} is out of range", code="head.range")
    least = -1 if isinstance(found, CoordinatorPing) else 0  # -1: a node only tests its connection
    if not least <= (term := getattr(found, "term", 0)) <= COUNT_MAX:
        raise InvalidPayload(f"a term of {term}; {least} to {COUNT_MAX}", code="head.range")
    if not 0 <= (weight := getattr(found, "weight", 0.0)) <= WEIGHT_MAX:
        raise InvalidPayload(f"a weight of {weight}; 0 to {WEIGHT_MAX:g}", code="head.weight")
    if (length := len(getattr(found, "traceback", ""))) > TRACEBACK_MAX:
        raise InvalidPayload(f"a traceback of {length} characters; at most {TRACEBACK_MAX}", code="head.traceback")
    for name in ("metrics", "values", "numbers"):
        _check_metrics(getattr(found, name, {}), counts=name == "metrics")


def _task_of(found: Any) -> tuple[int, ...]:
    for field in ("task", "id", "newest_task", "gossip_rounds"):
        value = getattr(found, field, None)
        if isinstance(value, tuple):
            return value
    return ()


def _check_metrics(metrics: Metrics, counts: bool) -> None:
    if text := metrics_fault(metrics):
        raise InvalidPayload(text, code="head.metrics", hint=METRIC_RULE)
    for name, count in metrics.items() if counts else ():
        if name.endswith("/examples") and not 0 <= count <= WEIGHT_MAX:
            raise InvalidPayload(f"{name} is {count}", code="head.metrics")
