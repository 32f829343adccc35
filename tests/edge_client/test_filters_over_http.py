"""Filters over HTTP: the models of the simulation, and bytes as a proxy on the wire counts them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import shoal
from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.algorithm.filter import packed_layout
from shoal.core.model.tree import digest
from shoal.jobs.spec import parse_job
from shoal.wire.payload import open_payload, payload_layout
from tests.algorithms.softmax import Softmax
from tests.algorithms.softmax import digits as softmax_digits
from tests.edge_client.dynamic_job import Joined
from tests.support.coordinator import Inside
from tests.support.proxy import Proxy

pytestmark = [pytest.mark.timeout(300)]

ROUNDS = 4
LISTS: dict[str, list[dict[str, Any]]] = {
    "plain": [],
    "bf16": [{"name": "half"}],
    "fp16": [{"name": "half", "form": "fp16"}],
    "8-bits": [{"name": "quantize"}],
    "4-bits": [{"name": "quantize", "bits": 4, "bucket": 64}],
    "top-k": [{"name": "top_k", "fraction": 0.05}],
    "top-k-8-bits": [{"name": "top_k", "fraction": 0.05}, {"name": "quantize"}],
    "top-k-fp16": [{"name": "top_k", "fraction": 0.05}, {"name": "half", "form": "fp16"}],
    "delta": [{"name": "delta"}],
    "delta-8-bits": [{"name": "delta"}, {"name": "quantize"}],
    "delta-bf16": [{"name": "half"}, {"name": "delta"}],
    "delta-top-k-8-bits": [{"name": "delta"}, {"name": "top_k", "fraction": 0.05}, {"name": "quantize"}],
}

OVER_HTTP = ("plain", "bf16", "4-bits", "top-k-8-bits", "delta-top-k-8-bits")
"""Each filter, and lists of them; tests/algorithms/test_learners_without_torch.py tries all lists in the simulation."""


def job(name: str) -> dict[str, Any]:
    schedule = {"name": "rounds", "min_nodes": 2, "cohort": 2, "quorum": 2, "deadline_s": 600.0}
    algorithm = {"name": "fedavg", "lr": 0.5}
    given = {"name": name, "seed": 5, "rounds": ROUNDS, "aggregation_precision": "fixed", "filters": LISTS[name]}
    return {**given, "algorithm": algorithm, "schedule": schedule}


def learners() -> dict[str, Softmax]:
    x, y = softmax_digits()
    parts = {"n0": slice(0, 100), "n1": slice(100, 250)}
    return {name: Softmax(x[part], y[part], (x[1500:], y[1500:])) for name, part in parts.items()}


@dataclass
class Done:
    """The results of all jobs on one coordinator."""

    wire: tuple[int, int]
    """Bytes up and down that the proxy has seen."""
    booked: tuple[int, int]
    """Those of the coordinator's ledger, of what the nodes said."""
    models: dict[str, bytes]
    sent: dict[str, int]
    """Bytes of the updates of each job, the metrics and names that travel with them included."""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("filters")
    running = Inside(folder / "data").start()
    direct = running.url
    proxy = Proxy(lambda: direct)
    running.url = proxy.url
    try:
        for name in OVER_HTTP:
            running.post("/jobs", {"spec": job(name)})
        nodes = [Joined(proxy.url, running.token(), n, one, folder, list(OVER_HTTP)) for n, one in learners().items()]
        for node in nodes:
            node.start()
        for node in nodes:
            node.finish()
        models = {n: running.request("GET", f"/api/v1/jobs/{n}/models/{ROUNDS}").content for n in OVER_HTTP}
    finally:
        running.stop()
        proxy.close()
    booked = dict(running.rows("SELECT direction, SUM(head_bytes + body_bytes) FROM traffic GROUP BY direction"))
    updates = "SELECT job, SUM(body_bytes) FROM traffic WHERE kind = 'report' AND direction = 'up' GROUP BY job"
    sent = dict(running.rows(updates))
    return Done((proxy.up, proxy.down), (booked["up"], booked["down"]), models, sent)


def test_the_coordinator_counts_the_bytes_on_the_wire(done: Done) -> None:
    assert done.booked == done.wire


@pytest.mark.parametrize("name", OVER_HTTP)
def test_it_comes_to_the_model_of_the_simulation(name: str, done: Done) -> None:
    foreseen = shoal.simulate(parse_job(job(name)), learners())
    assert digest(tree_slot(open_payload(done.models[name]), "model")) == digest(foreseen.model)


@pytest.mark.parametrize("name", OVER_HTTP)
def test_updates_are_as_large_as_their_form_says(name: str, done: Done) -> None:
    """Two nodes, four rounds; other parts of a report differ by the digits of its numbers."""
    saved = 2 * ROUNDS * (payload_bytes("plain") - payload_bytes(name))
    assert done.sent["plain"] - done.sent[name] == pytest.approx(saved, abs=200)


def payload_bytes(name: str) -> int:
    """Bytes of one update on the wire."""
    layout = packed_layout(parse_job(job(name)).build_filters(), learners()["n0"].model().layout)
    whole = payload_layout({"model": layout})
    return len(whole.header) + whole.nbytes
