"""A node that comes late to a job with a base: it has to fetch what all others hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.edge_client.dynamic_job import Joined, Late, learners
from tests.support.coordinator import inside
from tests.support.waiting import until


@pytest.mark.timeout(300)
@pytest.mark.parametrize("filters", [[], [{"name": "quantize", "bits": 8}]], ids=["plain", "in 8 bits"])
def test_a_latecomer_fetches_the_base_and_takes_part(filters: list[dict[str, Any]], tmp_path: Path) -> None:
    values = {
        "name": "digits",
        "filters": filters,
        "algorithm": {"name": "dynamic", "steps": 5, "batch_size": 10, "lr": 0.1, "local_steps": 300},
        "schedule": {"name": "divergence", "min_nodes": 2, "delta": 0.2, "balancing": "all"},
    }
    with inside(tmp_path / "data") as running:
        running.post("/jobs", {"spec": values})
        (first, one), (second, two), (late, three) = learners().items()
        clients = [
            Joined(running.url, running.token(), name, Late(learner, 0.05), tmp_path)
            for name, learner in ((first, one), (second, two))
        ]
        for client in clients:
            client.start()
        until("two versions", lambda: running.job("digits")["version"] >= 2)
        clients.append(Joined(running.url, running.token(), late, three, tmp_path))
        clients[-1].start()
        for client in clients:
            client.finish()
        until("the end", lambda: running.job("digits")["state"] == "done")
        nodes = {node["name"]: node for node in running.get("/jobs/digits/nodes")["nodes"]}
        assert nodes[late]["reports"] > 0
        assert nodes[late]["failures"] == 0
