"""An estimator of scikit-learn over HTTP: a real coordinator, real edge clients, and the model of the simulation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import SGDClassifier

import shoal
from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.errors import InvalidPayload
from shoal.core.model.tree import digest
from shoal.jobs.spec import parse_job
from shoal.learn import SklearnLearner
from shoal.wire.payload import open_payload
from tests.algorithms.softmax import digits
from tests.edge_client.dynamic_job import Joined
from tests.support.coordinator import inside
from tests.support.waiting import until

NAMES = np.array([f"digit {number}" for number in range(10)])


def learners() -> dict[str, SklearnLearner]:
    """Two nodes; the first has no nines."""
    x, y = digits()
    parts = {"n0": np.flatnonzero(y[:200] < 9), "n1": np.arange(200, 400)}
    estimator = SGDClassifier(loss="log_loss")
    test = x[1500:], NAMES[y[1500:]]
    return {name: SklearnLearner(estimator, (x[p], NAMES[y[p]]), test, classes=NAMES) for name, p in parts.items()}


def test_it_comes_to_the_model_of_the_simulation(tmp_path: Path) -> None:
    """Labels are texts, which stand in the name of an empty tensor; nodes without one of them fit all the same."""
    schedule = {"name": "rounds", "min_nodes": 2, "cohort": 2, "quorum": 2}
    job = {"name": "s", "seed": 5, "rounds": 3, "aggregation_precision": "fixed", "schedule": schedule}
    foreseen = shoal.simulate(parse_job(job), learners())
    with inside(tmp_path / "data") as running:
        running.post("/jobs", {"spec": job})
        nodes = [Joined(running.url, running.token(), n, one, tmp_path, ["s"]) for n, one in learners().items()]
        for node in nodes:
            node.start()
        for node in nodes:
            node.finish()
        until("it to end", lambda: running.job("s")["state"] == "done")
        model = tree_slot(open_payload(running.request("GET", "/api/v1/jobs/s/models/3").content), "model")
    assert digest(model) == digest(foreseen.model)
    fitted = learners()["n0"].estimator(model)
    x, y = digits()
    assert fitted.score(x[1500:], NAMES[y[1500:]]) > 0.7
    with pytest.raises(InvalidPayload, match="classes: digit 0"):
        SklearnLearner(SGDClassifier(), (x, y), classes=range(10)).estimator(model)
