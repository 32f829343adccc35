"""A node from its first hello to the end of its job, and what it does with its learner and its jobs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import shoal
import shoal_edge_client
from shoal.core.errors import InvalidJob, LearnerFailed
from shoal.core.model.tree import Tree
from shoal.core.protocol.message import Join, Stop
from shoal.jobs.spec import parse_job
from shoal.runtime.threads import SerialExecutor
from shoal_edge_client import agent as edge_agent
from shoal_edge_client.agent import CANCEL_GRACE_S, IDLE_PAUSE_S_MAX, Agent
from shoal_edge_client.edge_jobs import EdgeJobs
from tests.edge_client.conftest import LARGE, PLAN, Place
from tests.support.edge_coordinator import Coordinator, serving
from tests.support.learners import VectorLearner
from tests.support.scenario import Clock
from tests.support.waiting import PATIENCE_S, until

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("size", [8, LARGE])
def test_a_job_runs_to_its_end(place: Place, size: int) -> None:
    learner = VectorLearner(size)
    assert place.join(learner) is True
    coordinator = place.coordinator
    assert coordinator.hubs["j"].progress.phase == "done"
    assert [version.number for version in coordinator.versions["j"]] == [0, 1, 2, 3]
    assert learner.trained == 3
    assert len(coordinator.counted) == len(set(coordinator.counted)) == 5  # init, three rounds, evaluation
    assert coordinator.failed == []
    assert coordinator.requests["GET /jobs/j"] == 2  # at the start; the coordinator tells it of the end


def test_a_job_that_has_ended_leaves_nothing_but_the_credential(place: Place) -> None:
    place.join(VectorLearner(LARGE))
    left = {path.name for path in (place.folder / "state").rglob("*") if path.is_file()}
    assert left == {"credential.json", "lock"}


def test_two_nodes(place: Place) -> None:
    coordinator = place.coordinator
    coordinator.tokens["sht_two"] = ""
    nodes = [
        place.start(VectorLearner(), name=name, token=token, state_dir=place.folder / name)
        for name, token in (("a", "sht_one"), ("b", "sht_two"))
    ]
    assert [node.end() for node in nodes] == [True, True]
    assert len(coordinator.counted) == len(set(coordinator.counted))
    assert coordinator.hubs["j"].progress.phase == "done"


def test_two_jobs_of_one_node(tmp_path: Path) -> None:
    coordinator = Coordinator(tmp_path / "c", {"j": PLAN, "k": {**PLAN, "rounds": 5}})
    with serving(coordinator) as url:
        learner = VectorLearner()
        assert Place(coordinator, url, tmp_path).join(learner, jobs=["j", "k"]) is True
    assert learner.trained == 8
    assert {job for job, *_ in coordinator.counted} == {"j", "k"}


def test_it_beats_and_polls_while_it_trains(place: Place) -> None:
    coordinator, hold = place.coordinator, place.folder / "hold"
    hold.touch()
    node = place.start(VectorLearner(hold=hold), poll_wait_s=0.05)
    coordinator.wait(lambda: len(coordinator.beats) >= 3)
    polls = coordinator.requests["GET /work"]
    coordinator.wait(lambda: coordinator.requests["GET /work"] >= polls + 2)
    assert {progress for _, progress in coordinator.beats} <= {0.25, 0.5}
    hold.unlink()
    assert node.end() is True


def test_an_order_that_is_withdrawn_ends_its_training(place: Place) -> None:
    coordinator, hold = place.coordinator, place.folder / "hold"
    hold.touch()
    node = place.start(VectorLearner(hold=hold))
    coordinator.wait(lambda: coordinator.beats)
    coordinator.feed("j", Stop("an operator wants it so"))
    assert node.end() is True  # though the file that holds the training is still there
    coordinator.wait(lambda: not node.agent.executor.busy)


def test_without_named_jobs_it_stays(place: Place) -> None:
    coordinator = place.coordinator
    node = place.start(VectorLearner(), jobs=[])
    coordinator.wait(lambda: coordinator.ended("j"))
    polls = coordinator.requests["GET /work"]
    coordinator.wait(lambda: coordinator.requests["GET /work"] >= polls + 1)
    node.leave()
    assert node.end() is False
    assert coordinator.left == ["a"]


def test_an_idle_node_is_told_that_its_job_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names its last task in its polls, so it needs not ask."""

    async def not_asked(self: EdgeJobs) -> None:
        """The later check of the same."""

    monkeypatch.setattr(EdgeJobs, "check_ended", not_asked)
    coordinator = Coordinator(tmp_path / "c", {"j": {**PLAN, "schedule": {"name": "rounds", "min_nodes": 2}}})
    coordinator.feed("j", Join("zz"))
    with serving(coordinator) as url:
        node = Place(coordinator, url, tmp_path).start(VectorLearner(), poll_wait_s=0.2)
        coordinator.wait(lambda: len(coordinator.counted) == 2)  # then the round waits for the other node
        polls = coordinator.requests["GET /work"]
        coordinator.wait(lambda: coordinator.requests["GET /work"] >= polls + 3)
        coordinator.feed("j", Stop("an operator wants it so"))
        assert node.end() is True


def test_who_is_in_a_hurry_does_not_wait_for_the_learner(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    real = SerialExecutor.wait_idle

    async def rest(self: SerialExecutor, patience_s: float) -> bool:
        waited.append(patience_s)
        return await real(self, 0.0)

    async def main(hurry: bool) -> None:
        agent = Agent(place.settings(jobs=[]), VectorLearner())
        polls = place.coordinator.requests["GET /work"]
        running = asyncio.create_task(agent.run())
        await asyncio.to_thread(place.coordinator.wait, lambda: place.coordinator.requests["GET /work"] > polls)
        if hurry:
            agent.abandon()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    monkeypatch.setattr(SerialExecutor, "wait_idle", rest)
    for hurry in (False, True):
        asyncio.run(main(hurry))
    assert waited == [CANCEL_GRACE_S, 0.0]


def test_an_idle_node_does_not_hammer(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that answers each poll at once with nothing new (it is about to stop, say)."""
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float, result: object = None) -> object:
        if seconds and sys._getframe(1).f_globals["__name__"] == edge_agent.__name__:
            pauses.append(seconds)
        return await sleep(min(seconds, 0.001), result)

    place.join()
    monkeypatch.setattr(asyncio, "sleep", noted)
    monkeypatch.setattr(edge_agent, "time", Clock())  # each poll is answered at once, however slow the machine is
    node = place.start(VectorLearner(), jobs=[], poll_wait_s=0.001)
    until("eight pauses", lambda: len(pauses) >= 8)
    node.leave()
    assert node.end() is False
    longest = [min(0.05 * 2.0**count, IDLE_PAUSE_S_MAX) for count in range(1, 9)]
    assert all(most / 2 <= seconds <= most for seconds, most in zip(pauses, longest, strict=False)), pauses


def test_a_named_job_that_is_over(place: Place) -> None:
    assert place.join() is True
    assert place.join() is True


def test_a_named_job_that_ends_before_the_node_has_a_task(tmp_path: Path) -> None:
    coordinator = Coordinator(tmp_path / "c", {"j": {**PLAN, "schedule": {"name": "rounds", "min_nodes": 2}}})
    with serving(coordinator) as url:
        node = Place(coordinator, url, tmp_path).start(VectorLearner(), poll_wait_s=0.2)
        coordinator.wait(lambda: coordinator.requests["GET /work"] >= 2)
        coordinator.feed("j", Stop("an operator wants it so"))
        assert node.end() is True


def test_a_named_job_with_another_model(place: Place) -> None:
    place.coordinator.hubs["j"].store.save_version({"model": Tree.of({"v": np.zeros(3, np.float32)})})
    with pytest.raises(InvalidJob, match=r"no part in job j: its model differs from the job's \(8 parameters, not 3\)"):
        place.join()


def test_a_job_with_another_model_among_others(tmp_path: Path) -> None:
    coordinator = Coordinator(tmp_path / "c", {"j": PLAN, "i": PLAN})
    coordinator.hubs["i"].store.save_version({"model": Tree.of({"v": np.zeros(3, np.float32)})})
    with serving(coordinator) as url:
        node = Place(coordinator, url, tmp_path).start(VectorLearner(), jobs=[])
        coordinator.wait(lambda: coordinator.ended("j"))
        node.leave()
        assert node.end() is False
    assert {job for job, _, _ in coordinator.counted} == {"j"}


def test_a_learners_failure_is_told_and_the_node_goes_on(place: Place) -> None:
    coordinator = place.coordinator
    node = place.start(VectorLearner(fault="raise"))
    coordinator.wait(lambda: len(coordinator.failed) == 3)  # then it is not asked again
    assert all("ValueError: the data" in text for text in coordinator.failed)
    node.leave()
    assert node.end() is False
    assert len(list((place.folder / "state").rglob("errors/*.txt"))) == 3


@pytest.mark.parametrize(
    ("fault", "text"),
    [("nan", "w[0] is not finite"), ("metric", "not a metric name"), ("exit", "sys.exit(7)")],
)
def test_other_faults_of_a_learner(place: Place, fault: str, text: str) -> None:
    coordinator = place.coordinator
    node = place.start(VectorLearner(fault=fault))
    coordinator.wait(lambda: len(coordinator.failed) == 3)
    assert text in coordinator.failed[0]
    node.leave()
    assert node.end() is False


def test_a_job_that_this_release_cannot_run(place: Place) -> None:
    coordinator = place.coordinator
    broken = coordinator.specs["j"].model_copy(update={"algorithm": {"name": "tomorrow"}})
    coordinator.specs["j"] = broken
    node = place.start(VectorLearner())
    coordinator.wait(lambda: coordinator.failed)
    assert "cannot run the job" in coordinator.failed[0]
    assert "'tomorrow'" in coordinator.failed[0]
    node.leave()
    assert node.end() is False


@pytest.mark.parametrize("trainer", ["thread", "process"])
def test_a_learner_that_lacks_what_the_algorithm_needs(place: Place, trainer: str) -> None:
    coordinator = place.coordinator
    coordinator.specs["j"] = parse_job({"name": "j", "algorithm": {"name": "scaffold"}})
    if trainer == "thread":
        node = place.start(VectorLearner())
    else:
        target = f"{ROOT / 'tests/support/learners.py'}:learner"
        node = place.start(None, learner=target, trainer="process")
    coordinator.wait(lambda: coordinator.failed)
    assert "scaffold corrects every local gradient, and VectorLearner does not declare" in coordinator.failed[0]
    assert "fedavg" in coordinator.failed[0]
    node.leave()
    assert node.end() is False


@pytest.mark.parametrize("thing", [VectorLearner, 3])
def test_joining_with_what_is_no_learner_is_refused_before_anything_is_sent(place: Place, thing: Any) -> None:
    with pytest.raises(InvalidJob, match=r"learner is .*not a learner"):
        shoal.join("http://127.0.0.1:1", learner=thing, token="t", state_dir=place.folder / "state")
    assert not (place.folder / "state").exists()


def test_the_learner_is_loaded_by_name_with_its_options(place: Place) -> None:
    says = place.folder / "says"
    target = f"{ROOT / 'tests/support/learners.py'}:learner"
    agent = Agent(place.settings(learner=target, options={"says": str(says)}))
    assert asyncio.run(agent.run()) is True
    assert len(says.read_text().splitlines()) == 3


def test_device_and_precision_reach_the_factory(place: Place) -> None:
    path = place.folder / "edge_client.py"  # a file called like one of our packages
    path.write_text(
        textwrap.dedent("""
        from tests.support.learners import VectorLearner
        got = []
        def make(device="auto", precision="float32"):
            got.append((device, precision))
            made = VectorLearner()
            made.device = device
            return made
        """)
    )
    settings = place.settings(learner=f"{path}:make", device="cpu", precision="bf16")
    agent = Agent(settings)
    assert asyncio.run(agent.run()) is True
    (module,) = [one for one in sys.modules.values() if getattr(one, "__file__", None) == str(path)]
    assert module.got == [("cpu", "bf16")]
    assert agent.session.node_info()["device"] == "cpu"


class Directed(VectorLearner):
    """One that can be told where to compute."""

    told: ClassVar[list[dict[str, str]]] = []

    def use(self, **told: str) -> None:
        self.told.append(told)


@pytest.mark.parametrize("by_name", [True, False])
def test_device_and_precision_reach_a_learner_that_was_made_without(place: Place, by_name: bool) -> None:
    Directed.told.clear()
    target = f"{__name__}:Directed" if by_name else ""
    settings = place.settings(learner=target, device="cpu", precision="bf16")
    assert asyncio.run(Agent(settings, None if by_name else Directed()).run()) is True
    assert Directed.told == [{"device": "cpu", "precision": "bf16"}]


@pytest.mark.parametrize("by_name", [True, False])
def test_a_learner_that_cannot_be_told_its_device_costs_no_token(place: Place, by_name: bool) -> None:
    target = f"{ROOT / 'tests/support/learners.py'}:learner" if by_name else ""
    settings = place.settings(learner=target, device="cuda")
    with pytest.raises(InvalidJob, match="VectorLearner cannot be told its device"):
        asyncio.run(Agent(settings, None if by_name else VectorLearner()).run())
    assert place.coordinator.tokens == {"sht_one": ""}


@pytest.mark.parametrize(
    ("source", "error", "text"),
    [
        ("import no_such_thing", LearnerFailed, "no_such_thing"),
        ("def learner(: pass", LearnerFailed, "line 1"),
        ("learner = 3", InvalidJob, "neither a learner"),
    ],
)
def test_a_learner_that_cannot_be_loaded_costs_no_token(
    place: Place, source: str, error: type[Exception], text: str
) -> None:
    path = place.folder / "mine.py"
    path.write_text(source)
    with pytest.raises(error, match=text):
        asyncio.run(Agent(place.settings(learner=str(path))).run())
    assert place.coordinator.tokens == {"sht_one": ""}


def test_threads_are_limited_in_the_training_thread(place: Place) -> None:
    import torch

    found = []

    class Asking(VectorLearner):
        def evaluate(self) -> dict[str, float]:
            found.append(torch.get_num_threads())
            return super().evaluate()

    before = torch.get_num_threads()
    try:
        assert place.join(Asking(), threads=3) is True
    finally:
        torch.set_num_threads(before)
    assert set(found) == {3}


def test_join_from_python(place: Place) -> None:
    code = shoal_edge_client.join(
        place.url,
        learner=VectorLearner(),
        token="sht_one",
        name="a",
        jobs=["j"],
        state_dir=place.folder / "s",
        retry_pause_max_s=0.1,
    )
    assert code == 0
    assert place.coordinator.hubs["j"].progress.phase == "done"


def test_join_where_a_loop_runs_already(place: Place) -> None:
    """As in a notebook."""

    async def cell() -> int:
        return shoal_edge_client.join(
            place.url, learner=VectorLearner(), token="sht_one", name="a", jobs=["j"], state_dir=place.folder / "s"
        )

    assert asyncio.run(cell()) == 0


def test_join_in_a_thread(place: Place) -> None:
    codes: list[int] = []

    def call() -> None:
        codes.append(
            shoal_edge_client.join(
                place.url, learner=VectorLearner(), token="sht_one", name="a", jobs=["j"], state_dir=place.folder / "s"
            )
        )

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(PATIENCE_S)
    assert codes == [0]


def test_importing_it_is_light() -> None:
    heavy = {"torch", "httpx", "numpy", "structlog", "pydantic"}
    code = f"import shoal_edge_client, sys; print(sorted({heavy} & set(sys.modules)))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert said.strip() == "[]"


def test_its_public_face() -> None:
    assert shoal_edge_client.__all__ == ["join"]
