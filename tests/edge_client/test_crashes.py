"""A node is killed at every named point, really, and started again: nothing is lost and nothing counted twice.

What a missing fsync would lose is not seen here (the kernel survives); the order of the steps is tested with the store.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

import shoal
from shoal.core.algorithm import tree_slot
from shoal.core.machine import Version
from shoal.core.message import Join
from shoal.core.tree import digest
from shoal.spec import parse_job
from tests.edge_client.child import main
from tests.edge_client.conftest import LARGE, PLAN, Place, Running
from tests.edge_client.fake import Coordinator, serving
from tests.edge_client.learners import VectorLearner
from tests.edge_client.remembering import installed
from tests.forked import Forked

ROOT = Path(__file__).resolve().parents[2]
STEPS = ("written", "synced", "renamed", "kept")
ONCE = [f"{what}.{step}" for what in ("enrolling", "credential", "job") for step in STEPS]
EVERY_ROUND = {
    "body": [f"body.{step}" for step in STEPS],
    "spool": [*(f"spool.{step}" for step in STEPS), "spool.removed"],
    "memory": [f"memory.{step}" for step in STEPS],
    "moments": ["work.begun", "work.done", "report.sending", "report.answered"],
}
EVERY_POINT = {*ONCE, *(point for points in EVERY_ROUND.values() for point in points)}
ELSEWHERE = {f"rejoining.{step}" for step in STEPS}
"""Passed only at a coordinator that was rebuilt: tests/peering/test_readmission.py dies at them."""


def child(place: Place, point: str = "nowhere", nth: int = 1, size: int = 8) -> int:
    """Run a node's process; its exit code, negative for a signal."""
    given = {
        "POINTS": str(place.folder / "points"),
        "SHOAL_EDGE__URL": place.url,
        "SHOAL_EDGE__TOKEN": "sht_one",
        "SHOAL_EDGE__NAME": "a",
        "SHOAL_EDGE__JOBS": '["j"]',
        "SHOAL_EDGE__STATE": str(place.folder / "state"),
        "SHOAL_EDGE__BACKOFF_S": "0.1",
        "SHOAL_EDGE__LEARNER": str(ROOT / "tests/edge_client/learners.py:learner"),
        "SHOAL_EDGE__OPTIONS": f'{{"size": {size}}}',
    }
    log = place.folder / "log"
    code = Forked(main, point, nth, out=log, errors=log, more=given).wait(60)
    assert code in (0, -signal.SIGKILL), log.read_text()
    assert "Traceback" not in log.read_text(), log.read_text()
    return code


def check(coordinator: Coordinator, rounds: int) -> None:
    """Each round counted one update, once, and the node's memory knew of each that was counted before."""
    versions: list[Version] = coordinator.versions["j"]
    assert [version.number for version in versions] == list(range(rounds + 1))
    assert all(len(version.reports) == 1 for version in versions[1:])
    assert len(coordinator.counted) == len(set(coordinator.counted)) == rounds + 2
    counts = [metrics["train/count"] for metrics in coordinator.metrics if "train/count" in metrics]
    assert counts == [float(n) for n in range(rounds)]
    assert coordinator.failed == []


@pytest.mark.slow
@pytest.mark.parametrize("size", [8, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("group", EVERY_ROUND)
def test_killed_at_every_point(tmp_path: Path, group: str, size: int) -> None:
    rounds = len(EVERY_ROUND[group]) + 3
    plan = {**PLAN, "rounds": rounds, "algorithm": {"name": "remembering"}}
    with installed():
        coordinator = Coordinator(tmp_path / "coordinator", {"j": plan})
    with serving(coordinator) as url:
        place = Place(coordinator, url, tmp_path)
        for point in EVERY_ROUND[group]:
            assert child(place, point, size=size) == -signal.SIGKILL, f"{point} was never passed"
        assert child(place, size=size) == 0
    check(coordinator, rounds)
    assert set((tmp_path / "points").read_text().split()) == EVERY_POINT


@pytest.mark.slow
@pytest.mark.parametrize("group", EVERY_ROUND)
def test_what_a_filter_has_kept_back_survives_every_point(tmp_path: Path, group: str) -> None:
    """With error feedback each model hangs on what the node has not sent yet: of updates that count, and no others.

    It dies when it comes to a point for the second time, for at first it has nothing to remember.
    """
    rounds = 2 * len(EVERY_ROUND[group]) + 3
    filters = [{"name": "top_k", "share": 0.3}, {"name": "half"}]
    plan = {**PLAN, "rounds": rounds, "sums": "fixed", "filters": filters}
    coordinator = Coordinator(tmp_path / "coordinator", {"j": plan})
    with serving(coordinator) as url:
        place = Place(coordinator, url, tmp_path)
        for point in EVERY_ROUND[group]:
            assert child(place, point, 2) == -signal.SIGKILL, f"{point} was never passed"
        assert child(place) == 0
    foreseen = shoal.simulate(parse_job({"name": "j", **plan}), {"a": VectorLearner()})
    assert digest(tree_slot(coordinator.hubs["j"].slots, "model")) == digest(foreseen.model)


@pytest.mark.parametrize("point", ONCE)
def test_killed_while_entering(place: Place, point: str) -> None:
    """A one-time token is good for one node, even one that dies before it knows its credential."""
    assert child(place, point) == -signal.SIGKILL
    assert child(place) == 0
    assert len(place.coordinator.nodes) == 1
    assert len(place.coordinator.counted) == len(set(place.coordinator.counted)) == 5


def test_the_points_are_those_in_the_source() -> None:
    """A point that is named in the code, and killed at by no test, is no use."""
    text = "\n".join(
        path.read_text(encoding="utf-8")
        for folder in ("edge_client/shoal_edge_client", "shoal/runtime")
        for path in (ROOT / folder).glob("*.py")
    )
    single = set(re.findall(r"""at\(\s*"([a-z.]+)"\)""", text))
    written = set(re.findall(r"""write_file\([^\n]*"([a-z]+)", self\._at""", text)) | {"body"}
    assert single | {f"{what}.{step}" for what in written for step in STEPS} == EVERY_POINT | ELSEWHERE


@pytest.mark.parametrize("size", [8, LARGE], ids=["small", "large"])
def test_a_report_is_delivered_though_no_order_stands(tmp_path: Path, size: int) -> None:
    """The answer had come, but was not acted on; the round waits for another node, so nothing else reminds of it."""
    plan = {**PLAN, "schedule": {"name": "rounds", "min_nodes": 2}}
    coordinator = Coordinator(tmp_path / "coordinator", {"j": plan})
    coordinator.feed("j", Join("zz"))
    with serving(coordinator) as url:
        place = Place(coordinator, url, tmp_path)
        assert child(place, "report.answered", 2, size=size) == -signal.SIGKILL
        (report,) = (tmp_path / "state").rglob("report")
        node = Running(place, VectorLearner())
        coordinator.wait(lambda: coordinator.requests["POST /jobs/j/reports"] == 3)
        node.leave()
        assert node.end() is False
    assert not report.exists()
    assert len(coordinator.counted) == len(coordinator.metrics) == 2  # the model, and what was answered twice
    assert coordinator.requests["PUT /jobs/j/bodies/DIGEST"] == (2 if size == LARGE else 0)  # nor sent twice


def test_an_unsent_report_is_taken_up(place: Place) -> None:
    """Killed between the spool and the first byte sent; what the next process sends was not trained again."""
    points, coordinator = place.folder / "points", place.coordinator
    assert child(place, "report.sending", 2) == -signal.SIGKILL  # the first report was the initial model
    assert points.read_text().split().count("work.begun") == 2
    assert child(place) == 0
    assert points.read_text().split().count("work.begun") == 2 + 3  # two more rounds and the evaluation
    assert len(coordinator.counted) == len(set(coordinator.counted)) == 5
