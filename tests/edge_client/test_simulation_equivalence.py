"""Simulation and reality: the same decisions about the same nodes, and the same models to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.edge_client.dynamic_job import decided, in_training, job, simulated, take_part
from tests.support.coordinator import inside

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize(
    ("filters", "schedule", "partial"),
    [
        ([], {"balancing": "all", "delta": 0.2}, False),
        ([], {"balancing": "double", "delta": 1.0}, True),
        ([{"name": "quantize", "bits": 8}], {"balancing": "hedged", "delta": 0.3}, True),
        ([{"name": "quantize", "bits": 4}], {"balancing": "double", "delta": 0.02, "relative": True}, True),
        ([], {"balancing": "double", "delta": "auto"}, True),
    ],
    ids=["all", "double", "hedged in 8 bits", "relative in 4 bits", "auto"],
)
def test_simulation_and_reality_decide_the_same(
    filters: list[dict[str, Any]],
    schedule: dict[str, Any],
    partial: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = job(filters, **schedule)
    foreseen, models = simulated(values, monkeypatch)
    with inside(tmp_path / "data") as running:
        running.post("/jobs", {"spec": values})
        for node in take_part(running, tmp_path):
            node.finish()
        decisions, made = decided(running)
    assert in_training(decisions) == in_training(foreseen)
    assert made == models
    assert len(models) > 2
    assert partial == any("balanced" in text for _, text in foreseen)
