"""The training process: it answers, it may fail or die, and the peer goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from shoal.core.errors import Cancelled, InvalidJob, LearnerFailed
from shoal.core.protocol.machine import Work
from shoal.core.protocol.message import BlobRef, Task
from shoal.jobs.spec import load_job
from shoal.peering.host.trainer import PeerTrainer
from shoal.peering.state.peer_state import PeerState
from shoal.runtime.training import training_process
from shoal.runtime.training.training_process import TrainingSetup
from shoal.sim.hosts.toy_models import ToyLearner, toy_tree
from tests.peer.scenario import folders, until
from tests.support.waiting import PATIENCE_S

TOY = Path(__file__).with_name("toy.py")


def scene(tmp_path: Path, play: Any, **options: Any) -> None:
    """Let `play(peer_state, trainer, task)` happen, with a process of its own."""

    async def run() -> None:
        wish = tmp_path / "wish"
        with PeerState(folders(tmp_path) / "a") as peer_state:
            learner = options.pop("learner", f"{TOY}:learner")
            given = {"number": 5, "file": str(wish), **options}
            setup = TrainingSetup(learner, peer_state.folder / "training", options=given)
            job = load_job(tmp_path / "job.toml").model_dump(mode="json")
            trainer = PeerTrainer(setup, job, peer_state.blobs, peer_state.results)
            body = peer_state.blobs.put({"model": toy_tree((1.0, 2.0, 3.0), 0)})
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await play(peer_state, trainer, Task((1, 1), "a", "gossip", 0, 77, body))
            finally:
                await trainer.end()

    asyncio.run(run())


def test_it_makes_what_the_learner_makes(tmp_path: Path) -> None:
    async def play(peer_state: PeerState, trainer: PeerTrainer, task: Task) -> None:
        model, examples = await trainer.init(3)
        assert examples == 5.0
        assert bytes(peer_state.results.get(model)["model"].buffer) == bytes(ToyLearner(1).init(3).buffer)  # type: ignore[union-attr]
        result = await trainer.perform(Work(task))
        assert result.weight == 5.0
        assert result.metrics["eval/examples"] == 5.0
        assert isinstance(result.blob, BlobRef)
        peer_state.adopt_result(result)
        assert peer_state.blobs.has(result.blob.digest)
        assert task.blob is not None
        assert (await trainer.evaluate(task.blob))["eval/loss"] == 1.0
        assert trainer.starts == 1

    scene(tmp_path, play)


def test_what_the_learner_raises_is_told_and_the_process_lives_on(tmp_path: Path) -> None:
    async def play(peer_state: PeerState, trainer: PeerTrainer, task: Task) -> None:
        (tmp_path / "wish").write_text("raise")
        with pytest.raises(LearnerFailed, match="no such data"):
            await trainer.perform(Work(task))
        (tmp_path / "wish").unlink()
        assert (await trainer.perform(Work(task))).weight == 5.0
        assert trainer.starts == 1

    scene(tmp_path, play)


def test_work_that_nobody_wants_any_more_is_given_up_and_the_process_lives_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its priority is low: on a busy machine it may not get to know in the seconds after which it would be killed."""
    monkeypatch.setattr(training_process, "CANCEL_S", PATIENCE_S)

    async def play(peer_state: PeerState, trainer: PeerTrainer, task: Task) -> None:
        await trainer.init(3)
        (tmp_path / "wish").write_text("progress")
        work = asyncio.create_task(trainer.perform(Work(task)))
        await until((tmp_path / "wish.seen").exists)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert (await trainer.evaluate(task.blob or BlobRef("", 0)))["eval/loss"] == 1.0, "while the wish still stands"
        assert trainer.starts == 1

    scene(tmp_path, play)


def test_who_waits_for_a_process_that_is_ended_hears_of_it(tmp_path: Path) -> None:
    async def play(peer_state: PeerState, trainer: PeerTrainer, task: Task) -> None:
        (tmp_path / "wish").write_text("wait")
        work = asyncio.create_task(trainer.perform(Work(task)))
        await until((tmp_path / "wish.seen").exists)
        await trainer.end()
        with pytest.raises(Cancelled):
            await work
        assert trainer.pid is None

    scene(tmp_path, play)


def test_a_learner_that_lacks_what_the_algorithm_needs_is_named(tmp_path: Path) -> None:
    text = (
        "from shoal.sim.hosts.toy_models import ToyLearner\nclass Deaf(ToyLearner):\n    applies_corrections = False\n"
    )
    (tmp_path / "deaf.py").write_text(f"{text}def learner(**more): return Deaf(1)\n")

    async def play(peer_state: PeerState, trainer: PeerTrainer, task: Task) -> None:
        await trainer.check()  # of fedavg
        prox = PeerTrainer(
            trainer._training.setup,
            {"name": "j", "algorithm": {"name": "fedprox"}},
            peer_state.blobs,
            peer_state.results,
        )
        with pytest.raises(InvalidJob, match="fedprox corrects every local gradient, and Deaf does not declare"):
            await prox.check()
        await prox.end()

    scene(tmp_path, play, learner=f"{tmp_path / 'deaf.py'}:learner")


@pytest.mark.parametrize(
    ("learner", "error", "said"),
    [("nowhere.py:learner", InvalidJob, "no file"), (f"{TOY}:teacher", InvalidJob, "has no 'teacher'")],
)
def test_a_learner_that_is_not_there_is_named(tmp_path: Path, learner: str, error: type, said: str) -> None:
    async def play(peer_state: PeerState, trainer: PeerTrainer, task: Task) -> None:
        with pytest.raises(error, match=said):
            await trainer.init(3)
        assert trainer.pid is None

    scene(tmp_path, play, learner=learner)
