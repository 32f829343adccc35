"""Runs made up for the comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.results.run_record import RunRecord, VersionRecord


def a_run(metrics: Sequence[Mapping[str, float]], *, bytes_per_version: int = 100, more_bytes: int = 0) -> RunRecord:
    """A run whose version n has `metrics[n]`, closed after 10 n seconds; a third of the bytes goes up."""
    third = bytes_per_version // 3
    return RunRecord(
        name="made up",
        state="done",
        algorithm="fedavg",
        schedule="rounds",
        seed=1,
        origin="simulation",
        up_bytes=third * (len(metrics) - 1),
        down_bytes=(bytes_per_version - third) * (len(metrics) - 1) + more_bytes,
        versions=tuple(
            VersionRecord(
                number=number,
                why="all reports",
                opened_s=10.0 * number - 9,
                closed_s=10.0 * number,
                reports=3,
                metrics=dict(values),
                up_bytes=third * number,
                down_bytes=(bytes_per_version - third) * number,
            )
            for number, values in enumerate(metrics)
        ),
    )


def accuracies(*values: float, **more: int) -> RunRecord:
    """A run with these accuracies, from version 0 on."""
    return a_run([{"eval/accuracy": value} for value in values], **more)
