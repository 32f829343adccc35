"""Comparison of runs: accuracy, bytes, and the cost to reach a target.

    table = compare({"fedavg": first, "dynamic": second}, target=0.95)
    for row in table.rows: print(row.run, row.best, row.bytes_to_target, row.ratio)

Pure: run records in, rows out. A metric whose name ends in "loss" or "error" is better when it is smaller.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shoal.core.errors import InvalidJob
from shoal.plugins import suggestion
from shoal.results.run_record import NodeTraffic, RunRecord, VersionRecord

DEFAULT_METRICS = ("held_out/accuracy", "eval/accuracy")
"""Metrics to compare by default: the first of these that all runs have."""

SHARE = 0.98
"""Default target, as a share of the worst run's best value."""


@dataclass(frozen=True)
class NodePrice:
    """Bytes of one node in a run: total, and until the target (None: not reached)."""

    node: str
    """The node; empty for bytes of no node, such as a model that was downloaded by a user."""
    up_bytes: int
    down_bytes: int
    up_bytes_to_target: int | None
    down_bytes_to_target: int | None


@dataclass(frozen=True)
class ComparisonRow:
    """One run in a comparison. Values that were not reached or measured are None."""

    run: str
    algorithm: str
    schedule: str
    origin: str
    final: float | None
    """Value of the last measured version; None also if it is not finite."""
    best: float | None
    syncs: int
    """Versions that were closed, without the initial model."""
    up_bytes: int
    down_bytes: int
    bytes: int
    ratio: float | None
    """Bytes, divided by those of the baseline."""
    version_to_target: int | None
    bytes_to_target: int | None
    up_bytes_to_target: int | None
    down_bytes_to_target: int | None
    seconds_to_target: float | None
    nodes: tuple[NodePrice, ...]
    """Bytes by node, in order of their names."""


@dataclass(frozen=True)
class Comparison:
    """Rows of a comparison in the order of the runs."""

    metric: str
    target: float
    baseline: str
    rows: tuple[ComparisonRow, ...]


def compare(
    runs: Mapping[str, RunRecord], *, metric: str = "", target: float | None = None, baseline: str = ""
) -> Comparison:
    """Compare runs.

    `metric`: default the first of `DEFAULT_METRICS` that all have. `target`: default 0.98 times the best value of the
    run whose best is worst (for losses, divided by it). `baseline`: default the run with most bytes. Raises
    `InvalidJob`: no run, a run without versions, no common metric, an unknown baseline.
    """
    if not runs:
        raise InvalidJob("no run to compare", code="run.missing", hint="name at least one")
    for name, run in runs.items():
        if not run.versions:
            raise InvalidJob(f"{name} has no version yet", code="run.empty", hint="wait until it has closed a round")
    if baseline and baseline not in runs:
        raise InvalidJob(f"the baseline {baseline!r} is none of the runs", code="run.unknown", hint=_among(runs))
    metric = metric or _common_metric(runs)
    bests = {name: _best(metric, values_of(run, metric)) for name, run in runs.items()}
    for name, run in runs.items():
        if bests[name] is None:
            raise InvalidJob(
                f"{name} has no {metric}", code="run.metric", hint=suggestion(metric, _metrics(run)) or "run it longer"
            )
    reached = (
        target if target is not None else _usual_target(metric, [best for best in bests.values() if best is not None])
    )
    base = baseline or max(runs, key=lambda name: runs[name].up_bytes + runs[name].down_bytes)
    total = runs[base].up_bytes + runs[base].down_bytes
    rows = tuple(_row(name, run, metric, reached, total) for name, run in runs.items())
    return Comparison(metric, reached, base, rows)


def lower_is_better(metric: str) -> bool:
    """Return whether lower values of a metric are better: its name contains "loss", "error" or "perplexity"."""
    return any(word in metric.lower() for word in ("loss", "error", "perplexity"))


def values_of(run: RunRecord, metric: str) -> list[tuple[VersionRecord, float]]:
    """Return the finite values of a metric by version."""
    versions = sorted(run.versions, key=lambda version: version.number)
    found = ((version, version.metrics.get(metric, math.nan)) for version in versions)
    return [(version, value) for version, value in found if math.isfinite(value)]


def _row(name: str, run: RunRecord, metric: str, target: float, baseline_bytes: int) -> ComparisonRow:
    values = values_of(run, metric)
    sign = -1 if lower_is_better(metric) else 1
    hit = next((version for version, value in values if sign * value >= sign * target), None)
    measured = [version for version in sorted(run.versions, key=lambda v: v.number) if metric in version.metrics]
    final = measured[-1].metrics[metric]
    total = run.up_bytes + run.down_bytes
    return ComparisonRow(
        run=name,
        algorithm=run.algorithm,
        schedule=run.schedule,
        origin=run.origin,
        final=final if math.isfinite(final) else None,
        best=_best(metric, values),
        syncs=sum(version.number > 0 for version in run.versions),
        up_bytes=run.up_bytes,
        down_bytes=run.down_bytes,
        bytes=total,
        ratio=total / baseline_bytes if baseline_bytes else None,
        version_to_target=hit.number if hit else None,
        bytes_to_target=hit.bytes if hit else None,
        up_bytes_to_target=hit.up_bytes if hit else None,
        down_bytes_to_target=hit.down_bytes if hit else None,
        seconds_to_target=hit.closed_s if hit else None,
        nodes=tuple(_node_price(node, whole, hit) for node, whole in sorted(run.nodes.items())),
    )


def _node_price(node: str, whole: NodeTraffic, hit: VersionRecord | None) -> NodePrice:
    if hit is None:
        return NodePrice(node, whole.up, whole.down, None, None)
    then = hit.nodes.get(node, NodeTraffic())
    return NodePrice(node, whole.up, whole.down, then.up, then.down)


def _best(metric: str, values: Sequence[tuple[VersionRecord, float]]) -> float | None:
    pick = min if lower_is_better(metric) else max
    return pick((value for _, value in values), default=None)


def _usual_target(metric: str, bests: Sequence[float]) -> float:
    """Return the default target: slightly below the best value of the worst run."""
    return max(bests) / SHARE if lower_is_better(metric) else min(bests) * SHARE


def _common_metric(runs: Mapping[str, RunRecord]) -> str:
    common = set.intersection(*(_metrics(run) for run in runs.values()))
    for metric in DEFAULT_METRICS:
        if metric in common:
            return metric
    wanted = " or ".join(DEFAULT_METRICS)
    hint = f"--metric one of {', '.join(sorted(common))}" if common else "compare runs that measured the same"
    raise InvalidJob(f"not all runs have {wanted}", code="run.metric", hint=hint)


def _metrics(run: RunRecord) -> set[str]:
    return {name for version in run.versions for name in version.metrics}


def _among(runs: Mapping[str, RunRecord]) -> str:
    return f"one of {', '.join(runs)}"
