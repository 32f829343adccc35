"""A node of two processes: the same model as one, also if one of them is killed, and errors of either."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs

import shoal
from shoal.core.algorithm.learner import no_progress
from shoal.core.errors import InvalidJob, InvalidPayload, LearnerFailed
from shoal.core.model.tree import Slots
from shoal.jobs.spec import parse_job
from shoal.learn import TorchConfig
from shoal.learn.training.passes import Parallel
from shoal.loop.learner import LoopLearner, LoopStart
from shoal.loop.rendezvous import Rendezvous
from shoal.runtime.training import training_process
from shoal.runtime.training.cards import LearnerDevices, ProcessDevice
from shoal.runtime.training.child_process import LACK_OF_MEMORY, ProcessEnded
from shoal.runtime.training.ipc import error_fields
from shoal.runtime.training.site import group
from shoal.runtime.training.site.group import RankGroup
from shoal.runtime.training.site.requests import SiteWriter
from shoal.wire.payload import open_payload
from shoal_edge_client.process import run
from shoal_edge_client.settings import EdgeSettings
from shoal_edge_client.training.trainer_backend import ProcessTrainer, ThreadTrainer, trainer_backend
from tests.edge_client.conftest import PLAN, Place
from tests.edge_client.test_trainer_backend import JOB, ROOT, TASK, Bench, is_alive
from tests.support import site_learners
from tests.support.learners import VectorLearner
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S, until

LEARNERS = Path(site_learners.__file__)
COMMAND = f"exec {sys.executable} -m shoal trainer {{folder}}"
ROUNDING = 1e-6


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Callable[..., ProcessTrainer]]:
    """Start the learner in two processes."""
    made: list[ProcessTrainer] = []

    def make(learner: str = f"{LEARNERS}:learner", command: str = "", **options: Any) -> ProcessTrainer:
        place: Any = {"trainer": "command", "trainer_command": command} if command else {}
        settings = EdgeSettings(learner=learner, options=options, processes=2, **place)
        shop = trainer_backend(settings, None, tmp_path / "training")
        assert isinstance(shop, ProcessTrainer)
        made.append(shop)
        shop.open()
        return shop

    yield make
    for shop in made:
        shop.close()


@pytest.mark.parametrize("killed", [1, 0])
def test_a_killed_process_changes_nothing(tmp_path: Path, site: Callable[..., ProcessTrainer], killed: int) -> None:
    """A command starts those of which rank 1 is killed. Rank 1 ends with rank 0, also in the middle of a step."""
    alone = site_learners.learner()
    slots: Slots = {"model": alone.init(5)}
    hold, says = tmp_path / "hold", tmp_path / "says"
    hold.touch()
    shop = site(command=COMMAND if killed else "", hold=str(hold), says=str(says))

    def kill() -> None:
        ids = ids_of_ranks(says)
        os.kill(ids[killed], signal.SIGKILL)
        if killed == 0:
            until("rank 1 to end", lambda: not is_alive(ids[1]), PATIENCE_S / 2)
        hold.unlink()

    thread = threading.Thread(target=kill)
    thread.start()
    result = model_of(Bench(tmp_path / "together", shop), slots)
    thread.join()
    assert shop.training.starts == 2
    one = ThreadTrainer(EdgeSettings(), alone)
    one.open()
    np.testing.assert_allclose(result, model_of(Bench(tmp_path / "alone", one), slots), rtol=ROUNDING, atol=ROUNDING)


def ids_of_ranks(says: Path) -> dict[int, int]:
    """Wait until both ranks train, and return their process ids."""
    until("both to train", lambda: says.exists() and len(set(says.read_text().splitlines())) == 2)
    return {int(rank): int(pid) for rank, pid in map(str.split, says.read_text().splitlines())}


def numbers(slots: Slots) -> Any:
    """Return the numbers of a model."""
    tree: Any = slots["model"]
    return tree.buffer.view(np.float32)


def model_of(bench: Bench, slots: Slots) -> Any:
    """Return the numbers of the update of a task."""
    made = bench.do(TASK, slots)
    assert made.blob is not None
    return numbers(open_payload(bench.spool.report_blob(made.blob)))


@pytest.mark.parametrize(("rank", "where"), [("1", "rank 1: training failed"), ("0", "^training failed")])
def test_the_error_of_a_rank_is_that_of_the_task(
    tmp_path: Path, site: Callable[..., ProcessTrainer], rank: str, where: str
) -> None:
    shop = site(fails=rank)
    slots: Slots = {"model": site_learners.learner().init(5)}
    assert shop.compute.describe() == {"processes": 2, "parallel": "data parallel"}
    with pytest.raises(LearnerFailed, match=f"{where} in .*ValueError: this row is damaged"):
        Bench(tmp_path, shop).do(TASK, slots)
    assert shop.training.starts == 1


def test_an_update_that_diverged_does_not_end_the_group(tmp_path: Path, site: Callable[..., ProcessTrainer]) -> None:
    shop = site()
    bench = Bench(tmp_path, shop)
    slots: Slots = {"model": site_learners.learner().init(5)}
    with pytest.raises(InvalidPayload, match="the training diverged"):
        bench.do(TASK, slots, parse_job({**JOB, "algorithm": {"name": "fedavg", "lr": 1e38}}))
    assert np.isfinite(model_of(bench, slots)).all()
    assert shop.training.starts == 1


def test_learners_that_cannot_train_together_are_refused(site: Callable[..., ProcessTrainer]) -> None:
    with pytest.raises(InvalidJob, match="rank 1's model differs from rank 0's"):
        site(wide="1")
    fake: Any = SimpleNamespace(site=SimpleNamespace(size=2))
    with pytest.raises(InvalidJob, match="a node of 2 processes needs a TorchLearner"):
        RankGroup.attach(fake, VectorLearner())


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"examples": 5}, "rank 1's number of examples differs from rank 0's"),
        ({"error": {"message": "no such file"}}, "rank 1: no such file"),
    ],
)
def test_an_answer_that_differs_is_told(other: dict[str, Any], text: str) -> None:
    told: list[Any] = []
    ranks = SimpleNamespace(rank=0, gather=lambda own: [own, json.dumps(other).encode()])
    fake: Any = SimpleNamespace(site=ranks, needed=nullcontext)
    own: Any = SimpleNamespace(send=told.append, progress=no_progress)
    SiteWriter(own, fake).send({"ready": True, "examples": 6})
    assert told[0]["error"]["message"] == text


def test_the_device_of_each_rank_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank tells the card on which it trains; a model in parts is on the CPU between tasks."""

    class InParts(Parallel):
        title = "in parts"

        def site(self, module: Any, roles: Any, device: torch.device, autocast: Any) -> Any:
            assert device == torch.device("cuda:1")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda name: SimpleNamespace(uuid=name[-1], name="H200"))
    monkeypatch.setenv("LOCAL_RANK", "1")
    learner = site_learners.learner()
    learner.use(device="cuda")
    learner.config = TorchConfig(parallel=InParts())
    own = RankGroup.attach(cast("RankGroup", SimpleNamespace(site=object())), learner)
    assert own == LearnerDevices((ProcessDevice("cuda:1", "1", "H200"),), "in parts")
    assert learner.device == torch.device("cpu")
    told: list[Any] = []
    first = LearnerDevices((ProcessDevice("cuda:0", "0", "H200"),), "in parts").values()
    both = [json.dumps({"compute": one}).encode() for one in (first, own.values())]
    ranks = SimpleNamespace(rank=0, gather=lambda _: both, prepare=lambda: told.append("prepared"))
    fake: Any = SimpleNamespace(site=ranks, needed=nullcontext)
    own_writer: Any = SimpleNamespace(send=told.append, progress=no_progress)
    SiteWriter(own_writer, fake).send({"ready": True, "compute": first})
    assert LearnerDevices.parse(told[0]["compute"]).describe() == {
        "hardware": "2 × H200",
        "processes": 2,
        "parallel": "in parts",
    }
    assert told[1:] == ["prepared"], "after the answer, while the node waits for a task"


def test_more_processes_than_cores_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "sys", SimpleNamespace(platform="linux"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {4, 6}, raising=False)
    with capture_logs() as logs:
        assert (group.cores_here(2), group.cores_here(3)) == (2, 2)
    assert [(one["event"], one["hint"]) for one in logs] == [
        (
            "3 processes share 2 cores: they load and train slowly",
            "use at most as many processes as cores or cards",
        )
    ]


def test_a_rank_that_the_system_has_ended_is_told_with_the_likely_cause(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(group.threading, "Timer", lambda *_: SimpleNamespace(start=lambda: None))
    monkeypatch.setattr(group, "_told", threading.Event())
    for code in (-signal.SIGKILL, 3):
        group._end_with(cast("Any", SimpleNamespace(wait=lambda code=code: code)), 1)
    assert capsys.readouterr().err.splitlines() == [
        f"rank 1 of this node has ended by signal 9 (SIGKILL) ({LACK_OF_MEMORY})",
        "rank 1 of this node has ended with exit code 3",
    ]


def test_what_torchrun_cannot_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for given in ({"split_job": "j"}, {"trainer": "thread"}, {"trainer": "command", "trainer_command": "sbatch x"}):
        with pytest.raises(InvalidJob, match="cannot train in the processes of torchrun"):
            run(EdgeSettings.model_validate({**given, "learner": "x:y"}))
    with pytest.raises(InvalidJob, match="keep the base model"):
        trainer_backend(EdgeSettings(learner="x:y"), None, tmp_path).load_base(tmp_path / "base")
    loop = LoopLearner(Rendezvous(), LoopStart(site_learners.learner().init(0)))
    assert isinstance(trainer_backend(EdgeSettings(), loop, tmp_path), ThreadTrainer), "it divides its own training"


def test_the_port_of_an_earlier_group_is_passed_over_in_silence(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MASTER_ADDR", group.LOOPBACK)
    monkeypatch.setattr(group, "time", SimpleNamespace(sleep=lambda seconds: None))
    rank_0: dict[str, str] = {}
    own: Any = group._new_store(SimpleNamespace(set=rank_0.__setitem__), 0, 2)
    earlier, present = str(free_port()), rank_0[group.PORT]
    ports = chain([earlier], repeat(present))
    found = group._new_store(SimpleNamespace(get=lambda _: next(ports)), 1, 2)
    own.set("key", "value")
    assert found.get("key") == b"value"
    assert capfd.readouterr().err == ""


def test_under_torchrun_rank_0_says_that_another_one_has_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(group, "exit_now", lambda: None)
    one: Any = SimpleNamespace(site=SimpleNamespace(rank=0), failure=bytes)
    one.end = lambda why: RankGroup.end(one, why)
    own: Any = SimpleNamespace(send=pytest.fail, progress=no_progress)
    lost = error_fields(RuntimeError("Connection closed by peer"), "")
    SiteWriter(own, one)._leave(lost)
    assert capsys.readouterr().err.startswith("rank 0: another rank of this node has ended: ")


class Ended:
    """A training process that has ended."""

    pid, is_running = None, False

    def send(self, message: object) -> None:
        pass

    def receive(self, timeout_s: float) -> dict[str, Any] | None:
        raise ProcessEnded("the training process has ended")

    def kill(self) -> None:
        pass


def test_under_torchrun_a_node_ends_with_its_training_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun starts it again, perhaps with fewer ranks; a process started here would wait for those that are lost."""

    def leave() -> None:
        raise SystemExit

    monkeypatch.setattr(training_process, "exit_now", leave)
    shop = ProcessTrainer(EdgeSettings(learner=f"{LEARNERS}:learner"), tmp_path / "training", 0, lambda *_: Ended())
    with pytest.raises(ProcessEnded):
        shop.open()
    with pytest.raises(SystemExit):
        shop.open()
    shop.close()


def test_torchrun_starts_a_node_again_whose_rank_was_killed(place: Place) -> None:
    """The job then has the model of a single process: the task was done again, and counted once."""
    hold, says = place.folder / "hold", place.folder / "says"
    hold.touch()
    given = {
        "URL": place.url,
        "TOKEN": "sht_one",
        "NAME": "a",
        "STATE_DIR": str(place.folder / "state"),
        "JOBS": '["j"]',
        "LEARNER": f"{LEARNERS}:learner",
        "RETRY_PAUSE_MAX_S": "0.1",
        "OPTIONS": json.dumps({"hold": str(hold), "says": str(says)}),
    }
    environment = {**os.environ, **{f"SHOAL_EDGE__{key}": value for key, value in given.items()}}
    options = ["--standalone", "--nproc-per-node=2", "--max-restarts=2"]
    command = [sys.executable, "-m", "torch.distributed.run", *options, "-m", "shoal_edge_client"]
    with subprocess.Popen(command, cwd=ROOT, env=environment, process_group=0) as torchrun:
        try:
            os.kill(ids_of_ranks(says)[1], signal.SIGKILL)
            hold.unlink()
            assert torchrun.wait(2 * PATIENCE_S) == 0
        finally:
            with suppress(ProcessLookupError):
                os.killpg(torchrun.pid, signal.SIGKILL)
    foreseen = shoal.simulate(parse_job({"name": "j", **PLAN}), {"a": site_learners.learner()})
    slots = place.coordinator.hubs["j"].store.slots
    np.testing.assert_allclose(numbers(slots), numbers({"model": foreseen.model}), rtol=ROUNDING, atol=ROUNDING)
