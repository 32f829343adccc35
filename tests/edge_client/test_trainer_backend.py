"""Where the learner works: in a thread or in a process of its own, with the same outcome."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from shoal.core.errors import Cancelled, InvalidJob, InvalidPayload, LearnerFailed, ShoalError
from shoal.core.model.tree import Slots
from shoal.core.protocol.machine import TaskResult
from shoal.core.protocol.message import Task, TaskStatus
from shoal.jobs.spec import JobSpec, parse_job
from shoal.learn.digits import learner as digits
from shoal.loop.learner import LoopLearner, LoopStart
from shoal.loop.rendezvous import Rendezvous
from shoal.model_file import save_base, save_model
from shoal.runtime.http.coordinator_url import parse
from shoal.runtime.observability.tracebacks import traceback_text_of
from shoal.runtime.training import remote, training_process
from shoal.runtime.training.cards import LearnerDevices, ProcessDevice
from shoal.runtime.training.learner_output import LearnerOutput
from shoal.runtime.worker_ports import CancelToken
from shoal_edge_client.identity import StateFolder
from shoal_edge_client.settings import EdgeSettings
from shoal_edge_client.spool import Spool
from shoal_edge_client.training.trainer import EdgeTrainer, TaskInProgress
from shoal_edge_client.training.trainer_backend import ProcessTrainer, ThreadTrainer, TrainerBackend, trainer_backend
from tests.support import based_learner
from tests.support.learners import VectorLearner
from tests.support.waiting import pause, until

ROOT = Path(__file__).parents[2]
LEARNERS = Path(__file__).parents[1] / "support" / "learners.py"
JOB = {"name": "j", "learner": "shoal.learn.digits:learner"}


def is_alive(pid: int) -> bool:
    """Return whether such a process runs and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Bench:
    """A workshop, and what a trainer leans on."""

    def __init__(self, folder: Path, shop: TrainerBackend) -> None:
        self.shop, self.spool, self.watch = shop, Spool(folder / "j", "j"), CancelToken()
        self.state = StateFolder(folder / "state", parse("http://127.0.0.1"))

    def begin(self, task: Task, slots: Slots, spec: JobSpec | None = None, base: Slots | None = None) -> TaskInProgress:
        begin = self.shop.task_starter(spec or parse_job(JOB))
        trainer = EdgeTrainer("j", begin, self.spool, self.state.save_traceback)
        return trainer(task, slots, base or {}, None, self.watch)

    def do(self, task: Task, slots: Slots, spec: JobSpec | None = None) -> TaskResult:
        made = self.begin(task, slots, spec).run_piece(task)
        assert isinstance(made, TaskResult)
        return made

    def body(self, result: TaskResult) -> bytes:
        assert result.blob is not None
        return bytes(self.spool.report_blob(result.blob)[:])

    def memory(self, result: TaskResult) -> bytes:
        return bytes(self.spool.blobs.open(result.memory)[:]) if result.memory is not None else b""


TASK = Task((1, 2), "a", "train", 4, 3)
MODEL: Slots = {"model": VectorLearner().init(0)}


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Callable[..., ProcessTrainer]]:
    """Makes workshops with a process of their own."""
    made: list[ProcessTrainer] = []

    def make(name: str = "learner", options: dict[str, Any] | None = None, **more: Any) -> ProcessTrainer:
        learner = name if ":" in name else f"{LEARNERS}:{name}"
        settings = EdgeSettings(learner=learner, options=options or {}, trainer="process", **more)
        shop = trainer_backend(settings, None, tmp_path / "training")
        assert isinstance(shop, ProcessTrainer)
        made.append(shop)
        shop.open()
        return shop

    yield make
    for shop in made:
        shop.close()


def test_a_job_that_the_learner_cannot_do_is_refused_before_its_first_task(
    tmp_path: Path, apart: Callable[..., ProcessTrainer]
) -> None:
    shop = apart("VectorLearner")
    for name, text in (
        ("fedprox", "fedprox corrects every local gradient, and VectorLearner does not declare"),
        ("boosted_trees", "boosted_trees grows decision trees, and VectorLearner has no methods"),
    ):
        with pytest.raises(InvalidJob, match=text):
            shop.task_starter(parse_job({**JOB, "algorithm": {"name": name}}))


PLANS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "scaffold": {"algorithm": {"name": "scaffold"}},
    "quantized": {"filters": [{"name": "quantize"}]},
    "dynamic": {"algorithm": {"name": "dynamic", "steps": 2}, "schedule": {"name": "divergence", "delta": 1e9}},
}


def test_what_comes_out_is_the_same_bit_for_bit(tmp_path: Path, apart: Callable[..., ProcessTrainer]) -> None:
    """Torch, on a processor; plain, with private memory, through a filter, and in pieces until it is recalled."""
    here = ThreadTrainer(EdgeSettings(), digits(part=1, parts=4))
    here.open()
    there = apart("shoal.learn.digits:learner", {"part": 1, "parts": 4})
    assert there.count_examples(3) == here.count_examples(3)
    assert there.compute == here.compute == LearnerDevices((ProcessDevice("cpu", ""),))
    slots: Slots = {"model": digits(part=0, parts=4).init(5)}
    for name, plan in PLANS.items():
        spec = parse_job({**JOB, **plan})
        sent = spec.build_algorithm().init(slots["model"])  # type: ignore[arg-type]
        task = replace(TASK, numbers={"delta": 1e9, "new_reference": 1.0} if name == "dynamic" else {})
        outcomes = []
        for shop in (here, there):
            bench = Bench(tmp_path / f"{name}-{type(shop).__name__}", shop)
            hand = bench.begin(task, sent, spec)
            pieces = [hand.run_piece(task) for _ in range(3)] if name == "dynamic" else []
            made = hand.run_piece(replace(task, recall=True, revision=1) if pieces else task)
            assert isinstance(made, TaskResult)
            outcomes.append(
                (pieces, made.weight, made.metrics, bench.body(made), bench.memory(made), bench.spool._base)
            )
        assert outcomes[0] == outcomes[1], name
        assert bool(outcomes[0][4]) == (name in ("scaffold", "dynamic"))
        assert (outcomes[0][5] is not None) == (name == "dynamic")
    assert there.training.starts == 1
    assert not there.training.blobs.digests(), "everything was moved away"


def test_a_status_comes_across(tmp_path: Path, apart: Callable[..., ProcessTrainer]) -> None:
    spec = parse_job({**JOB, **PLANS["dynamic"]})
    task = replace(TASK, numbers={"delta": 1e9, "new_reference": 1.0}, checks_allowed=2)
    slots: Slots = {"model": digits(part=0, parts=4).init(5)}
    shops: list[TrainerBackend] = [ThreadTrainer(EdgeSettings(), digits(part=1, parts=4))]
    shops[0].open()
    shops.append(apart("shoal.learn.digits:learner", {"part": 1, "parts": 4}))
    hands = [Bench(tmp_path / str(n), shop).begin(task, slots, spec) for n, shop in enumerate(shops)]
    for check in (1, 2):
        assert all(hand.can_continue(task) for hand in hands)
        here, there = (hand.run_piece(task) for hand in hands)
        assert isinstance(here, TaskStatus)
        assert here == there
        assert here.check == check
    assert not any(hand.can_continue(task) for hand in hands)


def test_who_is_killed_is_begun_anew_with_the_same_result(tmp_path: Path, apart: Callable[..., ProcessTrainer]) -> None:
    hold, says = tmp_path / "hold", tmp_path / "says"
    shop = apart(options={"hold": str(hold), "says": str(says)})
    bench = Bench(tmp_path, shop)
    wanted = bench.body(bench.do(TASK, MODEL))
    hold.touch()

    def kill() -> None:
        until("both to have said something", lambda: says.read_text().count("\n") == 2)
        os.kill(shop.training.pid or 0, signal.SIGKILL)
        hold.unlink()

    thread = threading.Thread(target=kill)
    thread.start()
    with capture_logs() as logs:
        result = bench.do(TASK, MODEL)
    thread.join()
    assert bench.body(result) == wanted
    assert says.read_text() == "3\n3\n3\n"
    assert shop.training.starts == 2
    (said,) = [entry for entry in logs if entry["event"] == "training is started again"]
    assert said["why"] == "the training process has ended by signal 9 (SIGKILL)"
    assert said["hint"].startswith("did memory run out?")


def test_an_order_of_which_it_dies_again_and_again_fails(
    tmp_path: Path, apart: Callable[..., ProcessTrainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "RESTARTS_MAX", 1)
    monkeypatch.setattr(remote, "PAUSE_S", 0.0)
    copy = LearnerOutput._copy
    monkeypatch.setattr(LearnerOutput, "_copy", lambda *line: (pause(1.5), copy(*line)))
    shop = apart(options={"fault": "die"})  # its words are read after its end, and are not those of the next process
    with pytest.raises(LearnerFailed, match="has ended with exit code 7, 2 times at this task") as failed:
        Bench(tmp_path, shop).do(TASK, MODEL)
    assert failed.value.code == "learner.died"
    assert failed.value.hint == "its last words: out of luck"
    assert shop.training.starts == 2
    assert shop.training.pid is None


def test_the_pause_before_a_new_begin_ends_with_the_order(
    tmp_path: Path, apart: Callable[..., ProcessTrainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "PAUSE_S", 3600.0)
    monkeypatch.setattr(remote, "PAUSE_S_MAX", 3600.0)
    bench = Bench(tmp_path, apart(options={"fault": "die"}))
    monkeypatch.setattr(remote.RemoteTaskRun, "_pause", cancelling(bench.watch, remote.RemoteTaskRun._pause))
    with pytest.raises(Cancelled):
        bench.do(TASK, MODEL)


def cancelling(watch: CancelToken, call: Any) -> Any:
    """The same call, with the task withdrawn before it."""

    def instead(*given: Any) -> Any:
        watch.cancel()
        return call(*given)

    return instead


def test_a_cancelled_training_ends_at_its_next_tick_and_its_process_lives_on(
    tmp_path: Path, apart: Callable[..., ProcessTrainer]
) -> None:
    hold, says = tmp_path / "hold", tmp_path / "says"
    hold.touch()
    shop = apart(options={"hold": str(hold), "says": str(says)})
    bench = Bench(tmp_path, shop)

    def cancel() -> None:
        until("half of the work", lambda: bench.watch.fraction == 0.5)
        bench.watch.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(Cancelled):
        bench.do(TASK, MODEL)
    thread.join()
    hold.unlink()
    for number in (signal.SIGINT, signal.SIGTERM):  # such are for the node
        os.kill(shop.training.pid or 0, number)
    assert Bench(tmp_path / "next", shop).do(TASK, MODEL).weight == 3.0
    assert shop.training.starts == 1


def test_a_learner_that_hears_of_nothing_is_killed_in_the_end(
    tmp_path: Path, apart: Callable[..., ProcessTrainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_process, "CANCEL_S", 0.0)
    shop = apart(options={"fault": "deaf"})
    pid = shop.training.pid
    assert pid is not None
    bench = Bench(tmp_path, shop)
    bench.watch.cancel()
    with pytest.raises(Cancelled):
        bench.begin(TASK, MODEL).run_piece(TASK)
    until("the process to end", lambda: not is_alive(pid))


def test_the_learners_error_comes_with_its_own_traceback(tmp_path: Path, apart: Callable[..., ProcessTrainer]) -> None:
    shop = apart(options={"fault": "raise"})
    bench = Bench(tmp_path, shop)
    with pytest.raises(LearnerFailed) as failed:
        bench.do(TASK, MODEL)
    assert "ValueError: the data" in failed.value.message
    assert "learners.py, line" in failed.value.message
    assert "\n" not in failed.value.message
    (text,) = [path.read_text() for path in (bench.state.folder / "errors").glob("*.txt")]
    assert "self._misbehave()" in text
    assert shop.training.starts == 1


def test_what_goes_wrong_is_told_as_in_a_thread(tmp_path: Path, apart: Callable[..., ProcessTrainer]) -> None:
    for fault in ("raise", "exit", "nan", "metric", "text"):
        told = []
        for shop in (ThreadTrainer(EdgeSettings(), VectorLearner(fault=fault)), apart(options={"fault": fault})):
            shop.open()
            bench = Bench(tmp_path / fault / type(shop).__name__, shop)
            with pytest.raises(ShoalError) as failed:
                bench.do(TASK, MODEL)
            error = failed.value
            told.append((type(error), error.code, error.message, error.hint, traceback_text_of(error)))
        assert told[0][:4] == told[1][:4]
        assert told[0][4].splitlines()[-1:] == told[1][4].splitlines()[-1:]
        assert ("_misbehave" in told[1][4]) == (fault in ("raise", "exit", "text"))


@pytest.mark.parametrize(
    ("learner", "error", "said"),
    [
        ("nowhere.py:learner", InvalidJob, "no file"),
        (f"{LEARNERS}:teacher", InvalidJob, "has no 'teacher'"),
        (f"{LEARNERS}:learner", LearnerFailed, "ValueError"),
    ],
)
def test_a_learner_that_cannot_be_loaded_is_named(
    apart: Callable[..., ProcessTrainer], learner: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        apart(learner, {"size": -1} if error is LearnerFailed else None)


def test_what_the_learner_says_comes_out_in_the_nodes_log(tmp_path: Path, apart: Callable[..., ProcessTrainer]) -> None:
    def said() -> dict[str, str]:
        return {one["event"]: one["log_level"] for one in logs if one.get("task") == "1.2" and "job" not in one}

    with capture_logs() as logs:
        Bench(tmp_path, apart("talkative")).do(TASK, MODEL)
        until("four lines", lambda: len(said()) >= 4)
    assert said() == {"printed": "info", "10 %": "info", "20 %": "info", "logged, sht_[redacted]": "warning"}


@pytest.mark.parametrize(("asked", "threads"), [(0, 1), (2, 2)])
def test_a_node_has_its_threads_and_gives_them_back(three_threads: None, asked: int, threads: int) -> None:
    trainer = ThreadTrainer(EdgeSettings(threads=asked), digits(part=1, parts=4))
    trainer.open()
    assert torch.get_num_threads() == threads
    trainer.close()
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize(("asked", "threads"), [(0, 3), (2, 2)])
def test_a_loop_of_ones_own_keeps_its_threads(three_threads: None, asked: int, threads: int) -> None:
    learner = LoopLearner(Rendezvous(), LoopStart(VectorLearner().model()))
    trainer = ThreadTrainer(EdgeSettings(threads=asked), learner)
    trainer.open()
    assert torch.get_num_threads() == threads
    trainer.close()


def test_the_device_of_a_learner_in_this_process() -> None:
    trainer = ThreadTrainer(EdgeSettings(device="cpu"), digits(part=1, parts=4))
    assert trainer.compute == LearnerDevices()
    trainer.open()
    assert trainer.compute == LearnerDevices((ProcessDevice("cpu", ""),))


def test_the_device_of_a_learner_in_another_process(apart: Callable[..., ProcessTrainer]) -> None:
    assert apart("told", device="cpu").compute.cards == frozenset()
    assert apart("VectorLearner").compute.cards is None


def test_wishes_reach_it(apart: Callable[..., ProcessTrainer]) -> None:
    assert apart("told", device="cpu", precision="bf16", threads=3).compute.device == "cpu bf16 3"


def test_no_process_outlives_the_node_however_that_dies(tmp_path: Path) -> None:
    """Nor does one that the learner has begun."""
    code = f"""
from pathlib import Path
from tests.edge_client.test_trainer_backend import *
settings = EdgeSettings(learner="{LEARNERS}:parent", trainer="process")
shop = trainer_backend(settings, None, Path("training"))
shop.open()
Bench(Path(), shop).do(TASK, MODEL)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (tmp_path / "log").open("wb") as log:
        node = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=environment, stdout=log, stderr=log)
    pids: list[int] = []
    try:
        until("the processes to begin", lambda: (tmp_path / "pids").exists() or node.poll() is not None)
        assert node.poll() is None, (tmp_path / "log").read_text()
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        assert all(is_alive(pid) for pid in pids)
        node.kill()
        node.wait()
        until("the processes to end", lambda: not any(is_alive(pid) for pid in pids))
    finally:
        node.kill()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_the_setting_chooses_thread_or_process(tmp_path: Path) -> None:
    learner = VectorLearner()
    named = f"{LEARNERS}:learner"
    kinds = {
        ("auto", "", None): ThreadTrainer,
        ("auto", "none", None): ThreadTrainer,
        ("auto", "127.0.0.1:0", None): ProcessTrainer,
        ("auto", "127.0.0.1:0", learner): ThreadTrainer,
        ("thread", "127.0.0.1:0", None): ThreadTrainer,
        ("process", "", None): ProcessTrainer,
    }
    for (trainer, listen, given), kind in kinds.items():
        settings = EdgeSettings.model_validate({"trainer": trainer, "peer_listen": listen, "learner": named})
        assert type(trainer_backend(settings, given, tmp_path)) is kind
    with pytest.raises(InvalidJob, match="an object cannot go into another process"):
        trainer_backend(EdgeSettings(trainer="process"), learner, tmp_path)
    with pytest.raises(InvalidJob, match="no learner"):
        trainer_backend(EdgeSettings(), None, tmp_path)


def test_another_base_model_replaces_that_of_the_learner(tmp_path: Path) -> None:
    wanted = based_learner.learner(7)
    path = save_base(wanted, tmp_path / "base")
    unfit = save_model(digits(0).model(), tmp_path / "unfit")
    settings = EdgeSettings(learner=f"{based_learner.__file__}:learner")
    for shop in (ThreadTrainer(settings, None), ProcessTrainer(settings, tmp_path / "training")):
        try:
            shop.open()
            own = shop.model_form
            with pytest.raises(InvalidPayload, match="in one tree"):
                shop.load_base(unfit)
            assert shop.model_form == own, "it goes on with its own"
            shop.load_base(path)
            assert shop.model_form["model"]["base_model"] == wanted.layout.base_model != own["model"]["base_model"]
        finally:
            shop.close()


def test_a_learner_without_frozen_tensors_of_its_own_says_so(tmp_path: Path) -> None:
    shop = ThreadTrainer(EdgeSettings(), VectorLearner(2))
    shop.open()
    with pytest.raises(InvalidJob, match="VectorLearner cannot take another base model than its own"):
        shop.load_base(save_model(digits(0).model(), tmp_path / "base"))
    shop.close()


def test_a_job_with_more_stages_than_the_learner_has_is_refused(
    tmp_path: Path, apart: Callable[..., ProcessTrainer]
) -> None:
    spec = parse_job({**JOB, "stages": [{"rounds": 1}, {}]})
    shops: list[TrainerBackend] = [ThreadTrainer(EdgeSettings(), VectorLearner()), apart("VectorLearner")]
    shops[0].open()
    for shop in shops:
        with pytest.raises(InvalidJob, match="the job has 2 stages, and VectorLearner has 1 stage"):
            Bench(tmp_path, shop).do(TASK, MODEL, spec)
