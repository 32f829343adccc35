"""Simulations in several processes: the same bits, the errors of learners, processes that end, and what is refused."""

import os
import signal
import subprocess
import sys
import traceback
from contextlib import suppress
from functools import partial
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.core.errors import InvalidJob, LearnerFailed, ShoalError
from shoal.core.model.tree import digest
from shoal.jobs.spec import parse_job
from shoal.sim.tasks.learners import MakeLearner
from tests.algorithms.softmax import Softmax
from tests.sim import worker_learners as make
from tests.sim.drawn_jobs import drawn
from tests.sim.worker_learners import in_processes
from tests.support.waiting import PATIENCE_S, until


def job(**fields: Any) -> shoal.JobSpec:
    return parse_job({"name": "j", "rounds": 3, "algorithm": {"name": "fedavg", "batch_size": 8}, **fields})


@pytest.mark.parametrize(
    ("given", "learner", "nodes", "training"),
    [
        (job(rounds=2), make.stackable, 260, "520 tasks at once; 780 evaluations at once"),
        (job(rounds=2), make.with_buffers, 12, "24 tasks at once; 36 evaluations at once"),
        (job(algorithm={"name": "scaffold", "batch_size": 8}), make.softmax, 12, ""),
        (job(filters=[{"name": "top_k", "fraction": 0.1}]), make.softmax, 12, ""),
        (job(schedule={"name": "buffer", "size": 5, "min_nodes": 12}), make.softmax, 12, ""),
    ],
    ids=["stacked", "buffers", "private memory", "filter", "asynchronous"],
)
def test_the_number_of_processes_changes_no_bit(
    given: shoal.JobSpec, learner: Any, nodes: int, training: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (in_processes(given, learner, workers, nodes) for workers in (1, 2))
    assert digest(one.model) == digest(two.model)
    assert (one.versions, one.events, one.up_bytes, one.down_bytes) == (
        two.versions,
        two.events,
        two.up_bytes,
        two.down_bytes,
    )
    if training:
        assert (one.training, two.training) == (training, f"{training}; in 2 processes")
    assert "in 2 processes" in two.training
    assert active_children() == []


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("number", [12, 21])
def test_drawn_jobs_have_one_result_in_processes(number: int) -> None:
    """`test_fidelity.py` draws many more, for workers in one process."""
    draw = drawn(number)
    given, one, two = draw.simulate(), draw.simulate(workers=1), draw.simulate(workers=2)
    assert digest(given.model) == digest(one.model) == digest(two.model)
    assert given.versions == one.versions == two.versions
    assert "in 2 processes" in two.training
    assert active_children() == []


def test_what_goes_on_from_task_to_task_stays_here() -> None:
    given = {
        "name": "j",
        "rounds": 2,
        "algorithm": {"name": "dynamic", "batch_size": 8},
        "schedule": {"name": "divergence"},
    }
    one, two = (in_processes(parse_job(given), make.softmax, workers, 3) for workers in (1, 2))
    assert digest(one.model) == digest(two.model)
    assert two.training.endswith("in this process, since nodes keep a model from task to task")


def test_an_error_of_a_learner_is_as_in_one_process() -> None:
    caught = []
    for workers in (1, 2):
        with pytest.raises(LearnerFailed) as error:
            in_processes(job(), make.broken, workers)
        caught.append(error.value)
    assert str(caught[0]) == str(caught[1])
    shown = "".join(traceback.format_exception(caught[1]))
    assert 'worker_learners.py", line' in shown
    assert 'raise ValueError("no such column")' in shown
    assert active_children() == []


def test_a_process_that_was_killed_is_named() -> None:
    with pytest.raises(
        ShoalError, match=r"worker process \d of 2 ended by signal 9 \(Killed\) in tasks of node-7"
    ) as error:
        in_processes(job(), make.killed, 2)
    assert error.value.code == "worker.failed"
    assert "use fewer workers" in error.value.hint
    assert active_children() == []


def inner() -> MakeLearner:
    return lambda number: make.softmax(number + 1)


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (lambda: in_processes(job(), inner(), 2), "top level of a file"),
        (
            lambda: in_processes(job(), partial(make.softmax, kind=type("Own", (Softmax,), {})), 2),
            "cannot be sent",
        ),
        (lambda: shoal.simulate(job(), [make.softmax(0)] * 2, workers=2), "several workers need a function"),
        (lambda: shoal.simulate(job(), make.softmax, nodes=3, workers=2, fidelity="wire"), "go with a lean simulation"),
        (
            lambda: shoal.simulate(job(), make.softmax, nodes=3, workers=2, faults=shoal.Faults()),
            "or faults and fidelity",
        ),
        (lambda: in_processes(job(), make.softmax, 0), "workers is 0"),
    ],
    ids=["a function inside another", "a class inside another", "learners", "wire", "faults", "none"],
)
def test_what_other_processes_cannot_do_is_refused(run: Any, says: str) -> None:
    with pytest.raises(InvalidJob, match=says) as error:
        run()
    assert error.value.code == "job.workers"
    assert error.value.hint


OWN = """
from tests.sim.test_workers import job
from tests.sim.worker_learners import in_processes, softmax
def mine(number):
    return softmax(number)
"""


def test_a_function_that_is_in_no_file_is_refused() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", f"{OWN}in_processes(job(), mine, 2)"], capture_output=True, text=True, check=False
    )
    assert "is in no file" in ended.stderr
    assert "import it from there" in ended.stderr


@pytest.mark.parametrize(
    ("start", "says"),
    [
        ("if __name__ == '__main__':\n    print(in_processes(job(), mine, 2).training)", "in 2 processes"),
        ("in_processes(job(), mine, 2)", 'below `if __name__ == "__main__":`'),
    ],
    ids=["guarded", "not guarded"],
)
def test_a_script_starts_below_a_guard(start: str, says: str, tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(OWN + start)
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert says in ended.stdout + ended.stderr


STOPPED = """
from tests.sim.test_workers import job
from tests.sim.worker_learners import in_processes, slow
if __name__ == "__main__":
    print(in_processes(job(), slow, 2).state)
"""


@pytest.mark.parametrize("killed", [False, True], ids=["Ctrl-C", "kill -9"])
def test_processes_end_with_the_simulation(killed: bool, tmp_path: Path) -> None:
    script, begun = tmp_path / "mine.py", tmp_path / "begun"
    script.write_text(STOPPED)
    begun.mkdir()
    environment = {**os.environ, "WORKERS_BEGUN": str(begun)}
    main = subprocess.Popen(
        [sys.executable, script],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        until("both to begin", lambda: len(list(begun.iterdir())) == 2)
        if killed:
            main.kill()
        else:
            os.killpg(main.pid, signal.SIGINT)  # as a terminal does: every process of the group gets it
        state, errors = main.communicate(timeout=PATIENCE_S)
        assert (state, errors.count("Traceback")) == ("" if killed else "interrupted\n", 0)
        until("it to end", lambda: not alive(main.pid))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(main.pid, signal.SIGKILL)


def alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
