"""A node whose training process is started by a command, as by `sbatch`."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import tomllib
from pathlib import Path
from typing import Any

import pytest
import structlog
import yaml

from shoal.core.errors import InvalidJob, StorageFailed
from shoal.runtime.training.command_process import CommandProcess, TrainerCommand
from shoal_edge_client.settings import EdgeSettings
from shoal_edge_client.training.trainer_backend import ProcessTrainer, trainer_backend
from tests.conventions.sources import ROOT
from tests.edge_client.test_trainer_backend import LEARNERS, MODEL, TASK, Bench, is_alive
from tests.support.learners import VectorLearner
from tests.support.waiting import until

PROGRAMS = {
    "sbatch": """
[ "$1" = --parsable ] || exit 1
(sleep 0.2; exec setsid bash "$2") > job.out 2>&1 < /dev/null &
echo $! >> jobs
echo $!
""",
    "scancel": "echo $1 >> cancelled",
    "shoal": f'exec {sys.executable} -m shoal "$@"',
    "kubectl": "echo $* >> calls; [ $1 = delete ] || { cat > job.yaml; echo job.batch/x; }",
}
"""Programs that stand in for those of a site. This sbatch starts a job a moment later, detached."""


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make a copy of an example the current folder, with the programs in the path, and return its settings."""

    def use(name: str) -> dict[str, Any]:
        shutil.copytree(ROOT / "examples" / name, tmp_path, dirs_exist_ok=True)
        for program, text in PROGRAMS.items():
            path = tmp_path / "bin" / program
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"#!/bin/sh\n{text}\n")
            path.chmod(0o700)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.chdir(tmp_path)
        found: dict[str, Any] = tomllib.loads((tmp_path / "shoal.toml").read_text())["edge"]
        return found

    return use


def test_a_job_that_is_killed_in_a_task_is_asked_for_again_with_the_same_result(tmp_path: Path, example: Any) -> None:
    """First the learner's process is killed, which is told at once; then all of the job, which falls silent."""
    hold, says = tmp_path / "hold", tmp_path / "says"
    options = {"hold": str(hold), "says": str(says)}
    settings = EdgeSettings.model_validate(
        {**example("slurm"), "learner": f"{LEARNERS}:learner", "options": options, "trainer_timeout_s": 5, "name": "a"}
    )
    shop = trainer_backend(settings, None, tmp_path / "127.0.0.1_80" / "training")
    assert isinstance(shop, ProcessTrainer)
    bench = Bench(tmp_path, shop)

    def jobs() -> list[int]:
        return [int(pid) for pid in (tmp_path / "jobs").read_text().split()]

    def children(pid: int) -> list[int]:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def kill() -> None:
        until("training", lambda: says.read_text().count("\n") == 2)
        os.kill(children(jobs()[0])[0], signal.SIGKILL)
        until("another training", lambda: says.read_text().count("\n") == 3)
        os.kill(jobs()[1], signal.SIGKILL)
        hold.unlink()

    try:
        shop.open()
        wanted = bench.body(bench.do(TASK, MODEL))
        hold.touch()
        thread = threading.Thread(target=kill)
        thread.start()
        result = bench.do(TASK, MODEL)
        thread.join()
        assert bench.body(result) == wanted
        assert says.read_text() == "3\n" * 4
        assert shop.training.starts == 3
        assert len(list((tmp_path / "shared" / "a" / "127.0.0.1_80" / "training").glob("start-*"))) == 1
    finally:
        shop.close()
    until("the last job to end", lambda: not any(is_alive(pid) for pid in jobs()))
    assert (tmp_path / "cancelled").read_text() == (tmp_path / "jobs").read_text()


def test_a_job_of_kubernetes_is_made_and_deleted(tmp_path: Path, example: Any) -> None:
    settings = EdgeSettings.model_validate(example("kubernetes"))
    command = TrainerCommand(settings.trainer_command, settings.trainer_cancel_command)
    running = CommandProcess({}, tmp_path / "shared", command, structlog.get_logger(), {})
    until("the call", lambda: not running._process.poll() and (tmp_path / "job.yaml").exists())
    running._process.wait()
    job = yaml.safe_load((tmp_path / "job.yaml").read_text())
    (folder,) = (tmp_path / "shared").glob("start-*")
    assert (job["kind"], job["metadata"]["name"]) == ("Job", f"shoal-{folder.name}")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["shoal", "trainer", str(folder)]
    running.kill()
    assert (tmp_path / "calls").read_text().splitlines()[1:] == ["delete --wait=false job.batch/x"]


def test_what_keeps_it_from_starting(tmp_path: Path) -> None:
    asked = {"learner": f"{LEARNERS}:learner", "trainer": "command", "trainer_command": "sbatch x"}
    for wrong in ({"trainer_command": " "}, {"trainer": "process"}, {"split_job": "j"}):
        with pytest.raises(ValueError, match="trainer"):
            EdgeSettings.model_validate({**asked, **wrong})
    for place in ({"split_job": "j"}, {"trainer": "thread"}):
        with pytest.raises(ValueError, match=r"leave trainer = .* processes out"):
            EdgeSettings.model_validate({"processes": 2, **place})
    with pytest.raises(InvalidJob, match="an object cannot go into another process"):
        trainer_backend(EdgeSettings.model_validate(asked), VectorLearner(), tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(StorageFailed, match="file"):
        trainer_backend(EdgeSettings.model_validate({**asked, "trainer_dir": tmp_path / "file"}), None, tmp_path / "x")
