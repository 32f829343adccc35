"""A node is killed at every named point, really, and started again: nothing is lost and nothing counted twice.

Losses by a missing fsync are not seen here (the kernel survives); the order of the steps is tested with the store.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

import shoal
from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.model.tree import Tree, digest
from shoal.core.protocol.machine import ModelVersion
from shoal.core.protocol.message import Join
from shoal.jobs.spec import parse_job
from tests.edge_client.conftest import LARGE, PLAN, Place
from tests.edge_client.counting_algorithm import installed
from tests.support.edge_coordinator import Coordinator, serving
from tests.support.edge_process import loop_main, main
from tests.support.forkserver import Forked
from tests.support.learners import VectorLearner
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
STEPS = ("written", "synced", "renamed", "kept")
ONCE = [f"{what}.{step}" for what in ("enrolling", "credential", "job") for step in STEPS]
EVERY_ROUND = {
    "blob": [f"blob.{step}" for step in STEPS],
    "spool": [*(f"spool.{step}" for step in STEPS), "spool.removed"],
    "memory": [f"memory.{step}" for step in STEPS],
    "moments": ["work.begun", "work.done", "report.sending", "report.answered"],
}
IN_THE_LOOP = ["loop.task", "loop.reported"]
"""Lines of a training loop of the user's own."""
MAINS = {"learner": main, "loop": loop_main}
SIZES = {"small": 8, "large": LARGE}
EVERY_POINT = {*ONCE, *(point for points in EVERY_ROUND.values() for point in points)}
ELSEWHERE = {f"{what}.{step}" for what in ("rejoining", "base", "split") for step in STEPS}
"""Passed only at a coordinator that was rebuilt, with another base model than the job's, or in split jobs:
test_reenrolment.py, test_base_models.py and test_split_jobs.py die at them."""


def begun(place: Place, point: str = "nowhere", nth: int = 1, kind: str = "learner", **more: str) -> Forked:
    """Begin a node's process. `more`: settings of the node."""
    given = {
        "POINTS": str(place.folder / "points"),
        "SHOAL_EDGE__URL": place.url,
        "SHOAL_EDGE__TOKEN": "sht_one",
        "SHOAL_EDGE__NAME": "a",
        "SHOAL_EDGE__JOBS": '["j"]',
        "SHOAL_EDGE__STATE_DIR": str(place.folder / "state"),
        "SHOAL_EDGE__RETRY_PAUSE_MAX_S": "0.1",
        "SHOAL_EDGE__LEARNER": str(ROOT / "tests/support/learners.py:learner"),
        **{f"SHOAL_EDGE__{name.upper()}": value for name, value in more.items()},
    }
    log = place.folder / "log"
    return Forked(MAINS[kind], point, nth, out=log, errors=log, more=given)


def child(place: Place, point: str = "nowhere", nth: int = 1, size: int = 8, kind: str = "learner") -> int:
    """Run a node's process; its exit code, negative for a signal."""
    code = begun(place, point, nth, kind, options=f'{{"size": {size}}}').wait(60)
    log = place.folder / "log"
    assert code in (0, -signal.SIGKILL), log.read_text()
    assert "Traceback" not in log.read_text(), log.read_text()
    return code


def check(coordinator: Coordinator, rounds: int) -> None:
    """Each round counted one update, once, and the node's memory knew of each that was counted before."""
    versions: list[ModelVersion] = coordinator.versions["j"]
    assert [version.number for version in versions] == list(range(rounds + 1))
    assert all(len(version.reports) == 1 for version in versions[1:])
    assert len(coordinator.counted) == len(set(coordinator.counted)) == rounds + 2
    counts = [metrics["train/count"] for metrics in coordinator.metrics if "train/count" in metrics]
    assert counts == [float(n) for n in range(rounds)]
    assert coordinator.failed == []


CASES = [(group, "learner", size) for group in EVERY_ROUND for size in ("small", "large")]
CASES += [(group, "loop", "small") for group in EVERY_ROUND]
"""A loop's updates lie in the same files as a learner's, so large ones are tried with the learner alone."""


@pytest.mark.parametrize(("group", "kind", "size"), CASES)
def test_killed_at_every_point(tmp_path: Path, group: str, kind: str, size: str) -> None:
    lines = IN_THE_LOOP if kind == "loop" else []
    points = EVERY_ROUND[group] + (lines if group == "moments" else [])
    rounds = len(points) + 3
    plan = {**PLAN, "rounds": rounds, "algorithm": {"name": "remembering"}}
    with installed():
        coordinator = Coordinator(tmp_path / "coordinator", {"j": plan})
    with serving(coordinator) as url:
        place = Place(coordinator, url, tmp_path)
        for point in points:
            assert child(place, point, size=SIZES[size], kind=kind) == -signal.SIGKILL, f"{point} was never passed"
        assert child(place, size=SIZES[size], kind=kind) == 0
    check(coordinator, rounds)
    assert set((tmp_path / "points").read_text().split()) == EVERY_POINT | set(lines)


class FromZero(VectorLearner):
    """Begins as a loop does whose arrays are zeros."""

    def init(self, seed: int) -> Tree:
        return self.model()


@pytest.mark.parametrize(("group", "kind"), [*((group, "learner") for group in EVERY_ROUND), ("memory", "loop")])
def test_what_a_filter_has_kept_back_survives_every_point(tmp_path: Path, group: str, kind: str) -> None:
    """With error feedback each model hangs on what the node has not sent yet: of updates that count, and no others.

    It dies when it comes to a point for the second time, for at first it has nothing to remember.
    """
    rounds = 2 * len(EVERY_ROUND[group]) + 3
    filters = [{"name": "top_k", "fraction": 0.3}, {"name": "half"}]
    plan = {**PLAN, "rounds": rounds, "aggregation_precision": "fixed", "filters": filters}
    coordinator = Coordinator(tmp_path / "coordinator", {"j": plan})
    with serving(coordinator) as url:
        place = Place(coordinator, url, tmp_path)
        for point in EVERY_ROUND[group]:
            assert child(place, point, 2, kind=kind) == -signal.SIGKILL, f"{point} was never passed"
        assert child(place, kind=kind) == 0
    learner = VectorLearner() if kind == "learner" else FromZero()
    foreseen = shoal.simulate(parse_job({"name": "j", **plan}), {"a": learner})
    assert digest(tree_slot(coordinator.hubs["j"].store.slots, "model")) == digest(foreseen.model)


@pytest.mark.parametrize("point", ONCE)
def test_killed_while_entering(place: Place, point: str) -> None:
    """A one-time token is good for one node, even one that dies before it knows its credential."""
    assert child(place, point) == -signal.SIGKILL
    assert child(place) == 0
    assert len(place.coordinator.nodes) == 1
    assert len(place.coordinator.counted) == len(set(place.coordinator.counted)) == 5


def test_the_points_are_those_in_the_source() -> None:
    """A point that is named in the code, and killed at by no test, is not a use."""
    text = "\n".join(
        path.read_text(encoding="utf-8")
        for folder in ("edge_client/shoal_edge_client", "shoal/runtime")
        for path in (ROOT / folder).rglob("*.py")
    )
    single = set(re.findall(r"""at\(\s*"([a-z.]+)"\)""", text))
    written = set(re.findall(r"""write_file\([^\n]*"([a-z]+)", self\._at""", text)) | {"blob"}
    assert single | {f"{what}.{step}" for what in written for step in STEPS} == EVERY_POINT | ELSEWHERE


@pytest.mark.parametrize("size", [8, LARGE], ids=["small", "large"])
def test_a_report_is_delivered_though_no_order_stands(tmp_path: Path, size: int) -> None:
    """The answer had come, but was not acted on; the round waits for another node, so nothing else reminds of it.

    The first process ends with the initial model, whose answer may come after the task that follows it.
    """
    plan = {**PLAN, "schedule": {"name": "rounds", "min_nodes": 2}}
    coordinator = Coordinator(tmp_path / "coordinator", {"j": plan})
    coordinator.feed("j", Join("zz"))
    with serving(coordinator) as url:
        place = Place(coordinator, url, tmp_path)
        assert child(place, "work.begun", 2, size=size) == -signal.SIGKILL
        assert child(place, "report.answered", size=size) == -signal.SIGKILL
        (report,) = (tmp_path / "state").rglob("report")
        node = place.start(VectorLearner(size))
        until("the answer to be acted on", lambda: not report.exists())
        node.leave()
        assert node.end() is False
    assert coordinator.requests["POST /jobs/j/reports"] == 3
    assert len(coordinator.counted) == len(coordinator.metrics) == 2  # the model, and what was answered twice
    assert coordinator.requests["PUT /jobs/j/blobs/DIGEST"] == (2 if size == LARGE else 0)  # nor sent twice


def test_an_unsent_report_is_taken_up(place: Place) -> None:
    """Killed between the spool and the first byte sent; the next process does not train again."""
    points, coordinator = place.folder / "points", place.coordinator
    assert child(place, "report.sending", 2) == -signal.SIGKILL  # the first report was the initial model
    assert points.read_text().split().count("work.begun") == 2
    assert child(place) == 0
    assert points.read_text().split().count("work.begun") == 2 + 3  # two more rounds and the evaluation
    assert len(coordinator.counted) == len(set(coordinator.counted)) == 5
