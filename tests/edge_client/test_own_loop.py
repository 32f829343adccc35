"""`shoal.join` without a learner: a training loop of the user's own at a coordinator."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog

import shoal
from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.errors import InvalidJob, NotAllowed, ShoalError
from shoal.core.model.tree import digest
from shoal.core.protocol.message import Stop
from shoal.jobs.spec import parse_job
from shoal.learn import TorchLearner
from shoal.loop.task import LoopTask
from shoal.wire.payload import open_payload
from shoal_edge_client.joined_node import JoinedNode
from shoal_edge_client.settings import EdgeSettings
from tests.edge_client.conftest import PLAN, Place
from tests.loop.loops import loop, network, parts
from tests.support.coordinator import Server, inside
from tests.support.edge_coordinator import Coordinator, serving
from tests.support.learners import VectorLearner
from tests.support.waiting import PATIENCE_S, until

ROOT = Path(__file__).resolve().parents[2]
Body = Callable[[LoopTask], object]


def arrays() -> dict[str, np.ndarray[Any, Any]]:
    return {"w": np.zeros(8, np.float32)}


def add_one(task: LoopTask) -> None:
    task.report({"w": task.arrays()["w"] + 1}, examples=3)


def joined(place: Place, **more: Any) -> JoinedNode:
    return JoinedNode(place.settings(**more))


def run(place: Place, body: Body, **more: Any) -> int:
    """Run a loop with this body to its end; how many tasks there were."""
    count = 0
    with joined(place, **more) as node:
        for task in node.tasks(arrays()):
            body(task)
            count += 1
    return count


class Running:
    """A loop in a thread of its own. `outcome`: the number of its tasks, or the error that ended it."""

    def __init__(self, work: Callable[[], int]) -> None:
        self.outcome: list[Any] = []
        self._work = work
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.outcome.append(self._work())
        except BaseException as error:
            self.outcome.append(error)

    def end(self) -> Any:
        self._thread.join(4 * PATIENCE_S)
        assert self.outcome, "it goes on and on"
        return self.outcome[0]


# ------------------------------------------------------------------------------------------------------- the same model


@pytest.mark.timeout(300)
def test_it_gives_the_model_of_a_torch_learner(tmp_path: Path) -> None:
    """Nodes of three jobs at a real coordinator: plain, compressed, and dynamic averaging."""
    common = {"seed": 5, "rounds": 3, "aggregation_precision": "fixed"}
    rounds = {"name": "rounds", "cohort": 2, "quorum": 2, "min_nodes": 2}
    dynamic = {"name": "divergence", "in_step": True, "delta": 0.02, "min_nodes": 2}
    jobs: list[dict[str, Any]] = [
        {"name": "plain", "schedule": rounds},
        {"name": "small", "schedule": rounds, "filters": [{"name": "quantize"}, {"name": "delta"}]},
        {"name": "dynamic", "schedule": dynamic, "algorithm": {"name": "dynamic", "local_steps": 30}},
    ]
    specs = [{**common, **job} for job in jobs]
    names = [spec["name"] for spec in specs]

    def node(url: str, token: str, part: int) -> Running:
        def work() -> int:
            model = network()
            settings = {
                "url": url,
                "token": token,
                "name": f"n{part}",
                "jobs": names,
                "state_dir": tmp_path / str(part),
            }
            with JoinedNode(EdgeSettings.model_validate(settings)) as node:
                return loop(node.tasks(model), model, [parts()[part]])

        return Running(work)

    with inside(tmp_path / "data") as running:
        for spec in specs:
            running.post("/jobs", {"spec": spec})
        nodes = [node(running.url, running.token(), part) for part in (0, 1)]
        assert [one.end() >= 2 * 3 + 3 for one in nodes] == [True, True]
        for spec in specs:
            learners = {f"n{part}": TorchLearner(network, parts()[part]) for part in (0, 1)}
            foreseen = shoal.simulate(parse_job(spec), learners)
            last = foreseen.versions[-1].number
            body = running.request("GET", f"/api/v1/jobs/{spec['name']}/models/{last}").content
            assert digest(tree_slot(open_payload(body), "model")) == digest(foreseen.model), spec["name"]


# --------------------------------------------------------------------------------------------------- beginning and end


def test_it_ends_with_its_job(place: Place) -> None:
    assert run(place, add_one) == 3
    assert place.coordinator.counted == [("j", "a", task) for *_, task in place.coordinator.counted]
    assert len(place.coordinator.counted) == 5


def test_without_named_jobs_it_ends_with_those_that_it_took_part_in(tmp_path: Path) -> None:
    coordinator = Coordinator(tmp_path / "c", {"j": PLAN, "k": {**PLAN, "rounds": 5}})
    with serving(coordinator) as url:
        assert run(Place(coordinator, url, tmp_path), add_one, jobs=[]) == 8
    assert {job for job, *_ in coordinator.counted} == {"j", "k"}


def test_the_token_may_be_in_a_file(place: Place) -> None:
    (place.folder / "token").write_text("sht_one\n")
    given = {"token_file": place.folder / "token", "state_dir": place.folder / "state", "name": "a"}
    with shoal.join(place.url, **given) as node:
        for task in node.tasks(arrays()):
            add_one(task)
    assert place.coordinator.ended("j")
    with pytest.raises(ShoalError, match=r"token_file: .*none"):
        shoal.join(place.url, token_file=place.folder / "none")


def test_a_wrong_token_is_an_error_of_the_loop(place: Place) -> None:
    reached: list[str] = []

    def work() -> None:
        with joined(place, token="sht_other") as node:
            list(node.tasks(arrays()))
            reached.append("what follows an ended job")

    with pytest.raises(NotAllowed, match="the token is unknown"):
        work()
    assert reached == []


def test_a_job_with_another_model_is_an_error_of_the_loop(place: Place) -> None:
    first = place.start(VectorLearner(9))
    place.coordinator.wait(lambda: place.coordinator.versions["j"])
    first.leave()
    first.end()
    with pytest.raises(InvalidJob, match="no part in job j"):
        run(place, add_one)


def test_a_loop_that_is_left_hands_its_task_back(place: Place) -> None:
    with joined(place, shutdown_train_s=3600.0) as node:  # which it does not wait for
        for _ in node.tasks(arrays()):
            break
    assert place.coordinator.left == ["a"]
    assert place.coordinator.failed == []
    assert run(place, add_one) == 3


def test_a_report_before_the_loop_is_left_is_delivered(place: Place) -> None:
    with joined(place) as node:
        for task in node.tasks(arrays()):
            add_one(task)
            break
    assert len(place.coordinator.counted) == 2  # the initial model, and this
    assert place.coordinator.left == ["a"]
    assert run(place, add_one) == 2


def test_a_node_that_has_no_task_leaves(place: Place) -> None:
    with joined(place) as node:
        node.tasks(arrays())
        place.coordinator.wait(lambda: place.coordinator.requests["GET /work"])
    with joined(place) as node:
        pass
    assert run(place, add_one) == 3


# --------------------------------------------------------------------------------------------------------------- errors


def test_a_task_without_a_report_fails_and_the_job_goes_on(place: Place) -> None:
    seen: list[LoopTask] = []

    def forgetful(task: LoopTask) -> None:
        seen.append(task)
        if len(seen) > 1:
            add_one(task)

    assert run(place, forgetful) == 4
    (failed,) = place.coordinator.failed
    assert "went on to the next task without task.report(model, examples=…)" in failed
    assert "report once for each task" in failed
    assert place.coordinator.ended("j")


def test_numbers_that_are_none_fail_the_task_and_the_job_goes_on(place: Place) -> None:
    seen: list[LoopTask] = []

    def bad_once(task: LoopTask) -> None:
        seen.append(task)
        task.report({"w": task.arrays()["w"] * (np.nan if len(seen) == 1 else 1)}, examples=1)

    assert run(place, bad_once) == 4
    (failed,) = place.coordinator.failed
    assert "not finite" in failed or "nan" in failed.lower()


def test_an_exception_fails_the_task_with_its_line_and_goes_on(place: Place) -> None:
    def broken(task: LoopTask) -> None:
        raise ValueError("the data\nare gone")

    with pytest.raises(ValueError, match="the data"):
        run(place, broken)
    (failed,) = place.coordinator.failed
    line = broken.__code__.co_firstlineno + 1
    assert failed.startswith(f"the training loop failed in {__file__}, line {line}: ValueError: the data")
    assert place.coordinator.left == ["a"]
    assert run(place, add_one) == 3


def test_an_exception_after_the_report_loses_nothing(place: Place) -> None:
    def late(task: LoopTask) -> None:
        add_one(task)
        raise ValueError("too late")

    with pytest.raises(ValueError, match="too late"):
        run(place, late)
    assert (len(place.coordinator.counted), place.coordinator.failed) == (2, [])


def test_an_exception_of_evaluate_fails_the_task(place: Place) -> None:
    def evaluate(model: Any) -> dict[str, float]:
        raise KeyError("accuracy")

    def work() -> None:
        with joined(place) as node:
            list(node.tasks(arrays(), evaluate=evaluate))

    with pytest.raises(KeyError):
        work()
    (failed,) = place.coordinator.failed
    assert re.search(r"evaluate failed in .*test_own_loop\.py, line \d+: KeyError", failed)


def test_a_second_report_is_an_error_and_the_first_one_counts(place: Place) -> None:
    def twice(task: LoopTask) -> None:
        add_one(task)
        add_one(task)

    with pytest.raises(ShoalError, match="called twice"):
        run(place, twice)
    assert (len(place.coordinator.counted), place.coordinator.failed) == (2, [])


def test_a_cancelled_task_is_noticed_and_its_report_ignored(place: Place) -> None:
    seen: list[bool] = []

    def slow(task: LoopTask) -> None:
        assert task.progress(0.25)
        place.coordinator.wait(lambda: 0.25 in {progress for _, progress in place.coordinator.beats})
        place.coordinator.feed("j", Stop("an operator wants it so"))
        until("the task to be cancelled", lambda: not task.progress(0.5))
        seen.append(task.cancelled)
        task.report({"half": "a model"}, examples=3)

    assert run(place, slow) == 1
    assert seen == [True]
    assert len(place.coordinator.counted) == 1


def test_what_the_algorithm_needs_is_named(tmp_path: Path) -> None:
    coordinator = Coordinator(tmp_path / "c", {"j": {**PLAN, "algorithm": {"name": "scaffold"}}})
    with serving(coordinator) as url:
        place = Place(coordinator, url, tmp_path)
        with joined(place) as node:
            node.tasks(arrays())
            coordinator.wait(lambda: coordinator.failed)
    assert "scaffold corrects every local gradient, and LoopLearner does not declare" in coordinator.failed[0]


SCRIPT = """
import sys, time
from pathlib import Path
import numpy as np
import shoal
url, state = sys.argv[1:]
with shoal.join(url, token="sht_one", name="a", state_dir=Path(state), jobs=["j"]) as node:
    for task in node.tasks({"w": np.zeros(8, np.float32)}):
        while True:
            task.progress(0.5)
            time.sleep(0.01)
"""


def test_ctrl_c_hands_the_task_back(place: Place) -> None:
    given = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [ROOT, ROOT / "edge_client"]))}
    command = [sys.executable, "-c", SCRIPT, place.url, str(place.folder / "state")]
    with subprocess.Popen(command, cwd=ROOT, env=given, stderr=subprocess.PIPE, text=True) as script:
        try:
            place.coordinator.wait(lambda: place.coordinator.beats)
            script.send_signal(signal.SIGINT)
            said = script.communicate(timeout=PATIENCE_S)[1]
        finally:
            script.kill()
    assert script.returncode == -signal.SIGINT, said
    assert "KeyboardInterrupt" in said
    assert place.coordinator.left == ["a"]
    assert place.coordinator.failed == []


def test_the_coordinator_is_started_anew_meanwhile(tmp_path: Path) -> None:
    """Its process is killed while the loop trains; the report counts once, and the job goes on."""
    server = Server(tmp_path / "data", lease_s=3600.0).start()
    server.settings["port"] = int(server.url.rpartition(":")[2])
    seen: list[LoopTask] = []

    def work() -> int:
        settings = {"url": server.url, "token": server.token(), "name": "a", "jobs": ["j"], "retry_pause_max_s": 0.1}
        with JoinedNode(EdgeSettings.model_validate({**settings, "state_dir": tmp_path / "state"})) as node:
            for task in node.tasks(arrays()):
                seen.append(task)
                if len(seen) == 2:
                    server.kill()
                    server.start()
                add_one(task)
        return len(seen)

    try:
        server.begin("j", nodes=1, rounds=4)
        assert Running(work).end() == 4
        until("the job to end", lambda: server.job("j")["state"] == "done")
        assert server.job("j")["version"] == 4
    finally:
        server.kill()
        server.close()


def test_a_learner_of_the_settings_is_not_loaded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_EDGE__LEARNER", "nowhere.py:learner")
    with shoal.join(place.url, token="sht_one", name="a", state_dir=place.folder / "state", jobs=["j"]) as node:
        for task in node.tasks(arrays()):
            add_one(task)
    structlog.reset_defaults()
    assert place.coordinator.ended("j")
