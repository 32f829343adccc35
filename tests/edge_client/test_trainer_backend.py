"""Where the learner works: in a thread or in a process of its own, with the same outcome."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from shoal.core.errors import Cancelled, InvalidJob, LearnerFailed, ShoalError
from shoal.core.machine import Result
from shoal.core.message import Order, Status
from shoal.core.tree import Slots
from shoal.learn.digits import learner as digits
from shoal.runtime.address import parse
from shoal.runtime.pump import Watch
from shoal.runtime.tracebacks import whence
from shoal.runtime.training import process, remote
from shoal.spec import JobSpec, parse_job
from shoal_edge_client.identity import State
from shoal_edge_client.settings import EdgeSettings
from shoal_edge_client.spool import Spool
from shoal_edge_client.trainer import InHand, Trainer
from shoal_edge_client.workshop import Apart, Here, Workshop, workshop
from tests.edge_client.learners import VectorLearner

ROOT = Path(__file__).parents[2]
LEARNERS = Path(__file__).with_name("learners.py")
PATIENCE_S = 60.0
JOB = {"name": "j", "learner": "shoal.learn.digits:learner"}


def until(what: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < end, "it has not come to that"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and it has not ended (and only waits for its parent to look)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Bench:
    """A workshop, and what a trainer leans on."""

    def __init__(self, folder: Path, shop: Workshop) -> None:
        self.shop, self.spool, self.watch = shop, Spool(folder / "j", "j"), Watch()
        self.state = State(folder / "state", parse("http://127.0.0.1"))

    def begin(self, order: Order, slots: Slots, spec: JobSpec | None = None, base: Slots | None = None) -> InHand:
        begin = self.shop.job(spec or parse_job(JOB))
        trainer = Trainer("j", begin, self.spool, self.state.note_error)
        return trainer(order, slots, base or {}, None, self.watch)

    def do(self, order: Order, slots: Slots, spec: JobSpec | None = None) -> Result:
        made = self.begin(order, slots, spec).piece(order)
        assert isinstance(made, Result)
        return made

    def body(self, result: Result) -> bytes:
        assert result.body is not None
        return bytes(self.spool.payload(result.body)[:])

    def memory(self, result: Result) -> bytes:
        return bytes(self.spool.bodies.open(result.memory)[:]) if result.memory is not None else b""


ORDER = Order((1, 2), "a", "train", 4, 3)
MODEL: Slots = {"model": VectorLearner().init(0)}


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Callable[..., Apart]]:
    """Makes workshops with a process of their own."""
    made: list[Apart] = []

    def make(name: str = "learner", options: dict[str, Any] | None = None, **more: Any) -> Apart:
        learner = name if ":" in name else f"{LEARNERS}:{name}"
        settings = EdgeSettings(learner=learner, options=options or {}, train_in="process", **more)
        shop = workshop(settings, None, tmp_path / "training")
        assert isinstance(shop, Apart)
        made.append(shop)
        shop.open()
        return shop

    yield make
    for shop in made:
        shop.close()


PLANS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "scaffold": {"algorithm": {"name": "scaffold"}},
    "quantized": {"filters": [{"name": "quantize"}]},
    "dynamic": {"algorithm": {"name": "dynamic", "steps": 2}, "schedule": {"name": "drift", "delta": 1e9}},
}


def test_what_comes_out_is_the_same_bit_for_bit(tmp_path: Path, apart: Callable[..., Apart]) -> None:
    """Torch, on a processor; plain, with private memory, through a filter, and in pieces until it is recalled."""
    here = Here(EdgeSettings(), digits(part=1, parts=4))
    here.open()
    there = apart("shoal.learn.digits:learner", {"part": 1, "parts": 4})
    assert there.weigh(3) == here.weigh(3)
    assert there.device == here.device == "cpu"
    slots: Slots = {"model": digits(part=0, parts=4).init(5)}
    for name, plan in PLANS.items():
        spec = parse_job({**JOB, **plan})
        sent = spec.build_algorithm().init(slots["model"])  # type: ignore[arg-type]
        order = replace(ORDER, numbers={"delta": 1e9, "sync": 1.0} if name == "dynamic" else {})
        outcomes = []
        for shop in (here, there):
            bench = Bench(tmp_path / f"{name}-{type(shop).__name__}", shop)
            hand = bench.begin(order, sent, spec)
            pieces = [hand.piece(order) for _ in range(3)] if name == "dynamic" else []
            made = hand.piece(replace(order, recall=True, rev=1) if pieces else order)
            assert isinstance(made, Result)
            outcomes.append(
                (pieces, made.weight, made.metrics, bench.body(made), bench.memory(made), bench.spool._base)
            )
        assert outcomes[0] == outcomes[1], name
        assert bool(outcomes[0][4]) == (name in ("scaffold", "dynamic"))
        assert (outcomes[0][5] is not None) == (name == "dynamic")
    assert there.training.starts == 1
    assert not there.training.bodies.digests(), "everything was moved away"


def test_a_status_comes_across(tmp_path: Path, apart: Callable[..., Apart]) -> None:
    spec = parse_job({**JOB, **PLANS["dynamic"]})
    order = replace(ORDER, numbers={"delta": 1e9, "sync": 1.0}, until=2)
    slots: Slots = {"model": digits(part=0, parts=4).init(5)}
    shops: list[Workshop] = [Here(EdgeSettings(), digits(part=1, parts=4))]
    shops[0].open()
    shops.append(apart("shoal.learn.digits:learner", {"part": 1, "parts": 4}))
    hands = [Bench(tmp_path / str(n), shop).begin(order, slots, spec) for n, shop in enumerate(shops)]
    for check in (1, 2):
        assert all(hand.may_go_on(order) for hand in hands)
        here, there = (hand.piece(order) for hand in hands)
        assert isinstance(here, Status)
        assert here == there
        assert here.check == check
    assert not any(hand.may_go_on(order) for hand in hands)


def test_who_is_killed_is_begun_anew_with_the_same_result(tmp_path: Path, apart: Callable[..., Apart]) -> None:
    hold, says = tmp_path / "hold", tmp_path / "says"
    shop = apart(options={"hold": str(hold), "says": str(says)})
    bench = Bench(tmp_path, shop)
    wanted = bench.body(bench.do(ORDER, MODEL))
    hold.touch()

    def kill() -> None:
        until(lambda: says.read_text().count("\n") == 2)
        os.kill(shop.training.pid or 0, signal.SIGKILL)
        hold.unlink()

    thread = threading.Thread(target=kill)
    thread.start()
    with capture_logs() as logs:
        result = bench.do(ORDER, MODEL)
    thread.join()
    assert bench.body(result) == wanted
    assert says.read_text() == "3\n3\n3\n"
    assert shop.training.starts == 2
    (said,) = [entry for entry in logs if entry["event"] == "training is begun anew"]
    assert said["why"] == "the training process has ended by signal 9 (SIGKILL)"


def test_an_order_of_which_it_dies_again_and_again_fails(
    tmp_path: Path, apart: Callable[..., Apart], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "RESTARTS_MAX", 1)
    monkeypatch.setattr(remote, "PAUSE_S", 0.0)
    shop = apart(options={"fault": "die"})
    with pytest.raises(LearnerFailed, match="has ended with exit code 7, 2 times at this order") as failed:
        Bench(tmp_path, shop).do(ORDER, MODEL)
    assert failed.value.code == "learner.died"
    assert failed.value.hint == "its last words: out of luck"
    assert shop.training.starts == 2
    assert shop.training.pid is None


def test_the_pause_before_a_new_begin_ends_with_the_order(
    tmp_path: Path, apart: Callable[..., Apart], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "PAUSE_S", 3600.0)
    monkeypatch.setattr(remote, "PAUSE_S_MAX", 3600.0)
    bench = Bench(tmp_path, apart(options={"fault": "die"}))
    monkeypatch.setattr(remote.Remote, "_pause", cancelling(bench.watch, remote.Remote._pause))
    with pytest.raises(Cancelled):
        bench.do(ORDER, MODEL)


def cancelling(watch: Watch, call: Any) -> Any:
    """The same call, with the order withdrawn before it."""

    def instead(*given: Any) -> Any:
        watch.cancel()
        return call(*given)

    return instead


def test_a_cancelled_training_ends_at_its_next_tick_and_its_process_lives_on(
    tmp_path: Path, apart: Callable[..., Apart]
) -> None:
    hold, says = tmp_path / "hold", tmp_path / "says"
    hold.touch()
    shop = apart(options={"hold": str(hold), "says": str(says)})
    bench = Bench(tmp_path, shop)

    def cancel() -> None:
        until(lambda: bench.watch.fraction == 0.5)
        bench.watch.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(Cancelled):
        bench.do(ORDER, MODEL)
    thread.join()
    hold.unlink()
    for number in (signal.SIGINT, signal.SIGTERM):  # such are for the node
        os.kill(shop.training.pid or 0, number)
    assert Bench(tmp_path / "next", shop).do(ORDER, MODEL).weight == 3.0
    assert shop.training.starts == 1


def test_a_learner_that_hears_of_nothing_is_killed_in_the_end(
    tmp_path: Path, apart: Callable[..., Apart], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "CANCEL_S", 0.0)
    shop = apart(options={"fault": "deaf"})
    pid = shop.training.pid
    assert pid is not None
    bench = Bench(tmp_path, shop)
    bench.watch.cancel()
    with pytest.raises(Cancelled):
        bench.begin(ORDER, MODEL).piece(ORDER)
    until(lambda: not is_alive(pid))


def test_the_learners_error_comes_with_its_own_traceback(tmp_path: Path, apart: Callable[..., Apart]) -> None:
    shop = apart(options={"fault": "raise"})
    bench = Bench(tmp_path, shop)
    with pytest.raises(LearnerFailed) as failed:
        bench.do(ORDER, MODEL)
    assert "ValueError: the data" in failed.value.message
    assert "learners.py, line" in failed.value.message
    assert "\n" not in failed.value.message
    (text,) = [path.read_text() for path in (bench.state.folder / "errors").glob("*.txt")]
    assert "self._misbehave()" in text
    assert shop.training.starts == 1


def test_what_goes_wrong_is_told_as_in_a_thread(tmp_path: Path, apart: Callable[..., Apart]) -> None:
    for fault in ("raise", "exit", "nan", "metric", "text"):
        told = []
        for shop in (Here(EdgeSettings(), VectorLearner(fault=fault)), apart(options={"fault": fault})):
            shop.open()
            bench = Bench(tmp_path / fault / type(shop).__name__, shop)
            with pytest.raises(ShoalError) as failed:
                bench.do(ORDER, MODEL)
            error = failed.value
            told.append((type(error), error.code, error.message, error.hint, whence(error)))
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
    apart: Callable[..., Apart], learner: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        apart(learner, {"size": -1} if error is LearnerFailed else None)


def test_what_the_learner_says_comes_out_in_the_nodes_log(tmp_path: Path, apart: Callable[..., Apart]) -> None:
    def said() -> dict[str, str]:
        return {one["event"]: one["log_level"] for one in logs if one.get("order") == "1.2" and "job" not in one}

    with capture_logs() as logs:
        Bench(tmp_path, apart("talkative")).do(ORDER, MODEL)
        until(lambda: len(said()) >= 4)
    assert said() == {"printed": "info", "10 %": "info", "20 %": "info", "logged, sht_[redacted]": "warning"}


def test_wishes_reach_it(apart: Callable[..., Apart]) -> None:
    assert apart("told", device="cpu", precision="bf16", threads=3).device == "cpu bf16 3"


def test_no_process_outlives_the_node_however_that_dies(tmp_path: Path) -> None:
    """Nor does one that the learner has begun."""
    code = f"""
from pathlib import Path
from tests.edge_client.test_workshop import *
settings = EdgeSettings(learner="{LEARNERS}:parent", train_in="process")
shop = workshop(settings, None, Path("training"))
shop.open()
Bench(Path(), shop).do(ORDER, MODEL)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (tmp_path / "log").open("wb") as log:
        node = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=environment, stdout=log, stderr=log)
    pids: list[int] = []
    try:
        until(lambda: (tmp_path / "pids").exists() or node.poll() is not None)
        assert node.poll() is None, (tmp_path / "log").read_text()
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        assert all(is_alive(pid) for pid in pids)
        node.kill()
        node.wait()
        until(lambda: not any(is_alive(pid) for pid in pids))
    finally:
        node.kill()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_which_it_is(tmp_path: Path) -> None:
    learner = VectorLearner()
    named = f"{LEARNERS}:learner"
    kinds = {
        ("auto", "", None): Here,
        ("auto", "none", None): Here,
        ("auto", "127.0.0.1:0", None): Apart,
        ("auto", "127.0.0.1:0", learner): Here,
        ("thread", "127.0.0.1:0", None): Here,
        ("process", "", None): Apart,
    }
    for (train_in, listen, given), kind in kinds.items():
        settings = EdgeSettings.model_validate({"train_in": train_in, "peer_listen": listen, "learner": named})
        assert type(workshop(settings, given, tmp_path)) is kind
    with pytest.raises(InvalidJob, match="an object cannot go into another process"):
        workshop(EdgeSettings(train_in="process"), learner, tmp_path)
    with pytest.raises(InvalidJob, match="no learner"):
        workshop(EdgeSettings(), None, tmp_path)
