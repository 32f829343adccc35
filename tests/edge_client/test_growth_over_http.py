"""A job whose network grows, with a real coordinator and real edge clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.model.tree import digest
from shoal.jobs.spec import parse_job
from shoal.wire.payload import open_payload
from tests.edge_client.dynamic_job import Joined
from tests.learn.test_growing_learner import JOB, learner
from tests.support.coordinator import inside
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(300)

NODES = ("n0", "n1")
JOB_OF_TWO: dict[str, Any] = JOB | {
    "aggregation_precision": "fixed",
    "schedule": {"name": "rounds", "cohort": 2, "quorum": 2, "min_nodes": 2},
}


def test_it_comes_to_the_model_of_the_simulation_and_tells_the_stages(tmp_path: Path) -> None:
    learners = {node: learner(part) for part, node in enumerate(NODES)}
    foreseen = shoal.simulate(parse_job(JOB_OF_TWO), learners, progress=False)
    with inside(tmp_path / "data") as running:
        running.post("/jobs", {"spec": JOB_OF_TWO})
        nodes = [
            Joined(running.url, running.token(), node, learner(part), tmp_path, ["growing"])
            for part, node in enumerate(NODES)
        ]
        for node in nodes:
            node.start()
        for node in nodes:
            node.finish()
        until("the job to end", lambda: running.job("growing")["state"] == "done")
        versions = running.get("/jobs/growing/versions")["versions"]
        stages = {one["number"]: one["numbers"].get("stage", 0) for one in versions}
        assert [stages[number] for number in sorted(stages)] == [0, 0, 0, 1, 1, 2, 2]
        body = running.request("GET", "/api/v1/jobs/growing/models/6").content
        assert digest(tree_slot(open_payload(body), "model")) == digest(foreseen.model)
