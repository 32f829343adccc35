"""`shoal simulate`: a whole job in this process."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.numpy import load_file
from typer.testing import Result

from shoal.wire.payload import read_header
from tests.cli.conftest import Shoal, envelope

JOB = """
name = "toy"
rounds = 3
learner = "toy.py:learner"

[schedule]
name = "rounds"
min_nodes = 3
"""

TOY = """
import numpy as np
from shoal.core.algorithm.learner import Trained
from shoal.core.model.tree import Tree

class Toy:
    def __init__(self, target):
        self.target, self.weights = np.float32(target), None
    def init(self, seed):
        return Tree.of({"w": np.zeros(2, np.float32)})
    def load(self, model):
        self.weights = np.array(model["w"])
    def model(self):
        return Tree.of({"w": self.weights})
    def train(self, config, *, correct=None, extra_loss=None, progress=None):
        self.weights = self.weights + np.float32(0.5) * (self.target - self.weights)
        return Trained(1.0, {"train/loss": float(abs(self.target - self.weights).sum())})
    def gradient(self, config, *, progress=None):
        return Trained(1.0), Tree.of({"w": self.weights - self.target})
    def evaluate(self):
        off = float(abs(self.target - self.weights).mean())
        return {"eval/examples": 1.0, "eval/loss": off, "eval/accuracy": 1 / (1 + off), "eval/accuracy@0.5": 0.5}

def learner(part: int = 0, parts: int = 1, shift: float = 0.0):
    assert 0 <= part < parts
    return Toy(part + shift)

def lonely():
    return Toy(1)

def alone(part: int = 0):
    return Toy(part)

def any(**given):
    return Toy(given["part"])

def broken(part: int = 0, parts: int = 1):
    raise RuntimeError("no data here")
"""


@pytest.fixture(autouse=True)
def toy(place: Path) -> None:
    (place / "job.toml").write_text(JOB)
    (place / "toy.py").write_text(TOY)


def test_a_job_is_run_by_all_nodes(shoal: Shoal) -> None:
    result = shoal("simulate", "job.toml", "--json", "-o", "m.safetensors")
    assert result.exit_code == 0, result.output
    data = envelope(result)["data"]
    assert (data["state"], len(data["versions"])) == ("done", 4)
    assert [version["reports"] for version in data["versions"]] == [0, 3, 3, 3]
    assert data["up_bytes"] > 0
    # Three targets 0, 1, 2 with half a step each: the mean goes from 0 to 0.875.
    assert load_file("m.safetensors")["w"].tolist() == [0.875, 0.875]
    assert read_header(Path("m.safetensors").read_bytes()).keys() == {"model"}
    assert data["metrics"]["eval/loss"] == pytest.approx((0.875 + 0.125 + 1.125) / 3)


def test_checkpoints_are_written_beside_the_model(shoal: Shoal, place: Path) -> None:
    result = shoal("simulate", "job.toml", "--set", "checkpoint_every=2", "-o", "m.safetensors")
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in place.glob("*.safetensors")) == ["m-2.safetensors", "m.safetensors"]
    assert load_file("m-2.safetensors")["w"].tolist() == [0.75, 0.75]


def test_a_model_that_cannot_be_written_leaves_the_report_and_the_record(shoal: Shoal, place: Path) -> None:
    (place / "m.safetensors").mkdir()
    result = shoal("simulate", "job.toml", "--json", "-o", "m.safetensors", "--record", "run.json")
    assert (result.exit_code, envelope(result)["data"]["state"]) == (1, "done")
    assert "m.safetensors: Is a directory" in result.stderr
    assert (place / "run.json").exists()


@pytest.mark.parametrize("option", ["-o", "--record"])
def test_a_missing_folder_is_found_before_the_job_starts(shoal: Shoal, option: str) -> None:
    result = shoal("simulate", "job.toml", "--learner", "toy.py:broken", option, "no/file")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no/file: No such file" in result.stderr


def test_an_interrupt_leaves_the_result_of_the_versions_made(shoal: Shoal, place: Path) -> None:
    """Node 1's second task is interrupted: version 1 is made."""
    interrupted = """
class Interrupted(Toy):
    tasks = 0
    def train(self, config, **more):
        self.tasks += 1
        if self.target == 1 and self.tasks == 2:
            raise KeyboardInterrupt
        return super().train(config, **more)

def interrupted(part: int = 0):
    return Interrupted(part)
"""
    (place / "toy.py").write_text(TOY + interrupted)
    ending = ("--learner", "toy.py:interrupted", "-o", "m.safetensors", "--record", "run.json")
    result = shoal("simulate", "job.toml", "--json", *ending)
    assert result.exit_code == 130
    data = envelope(result)["data"]
    assert (data["state"], len(data["versions"])) == ("interrupted", 2)
    assert load_file("m.safetensors")["w"].tolist() == [0.5, 0.5]
    assert "interrupted; the result is that of 1 version" in result.stderr
    assert "interrupted" in (place / "run.json").read_text()


def test_learners_of_many_nodes_are_made_when_they_have_a_task(shoal: Shoal, place: Path) -> None:
    made = (
        "def counted(part: int = 0):\n    with open('made.txt', 'a') as f: f.write(f'{part} ')\n    return Toy(part)\n"
    )
    (place / "toy.py").write_text(TOY + made)
    cohort = ("--set", "schedule.cohort=3", "--set", "schedule.min_nodes=101", "--set", "rounds=2")
    result = shoal("simulate", "job.toml", "--json", "--learner", "toy.py:counted", "--nodes", "101", *cohort)
    assert result.exit_code == 0, result.output
    assert [version["reports"] for version in envelope(result)["data"]["versions"]] == [0, 3, 3]
    parts = (place / "made.txt").read_text().split()
    assert parts[:1] == ["0"]
    assert len(parts) == 1 + 1 + 2 * 3 + 101  # to check it, for the first model, in two rounds, to measure the last


def test_the_fidelity_changes_no_number(shoal: Shoal) -> None:
    runs = [envelope(shoal("simulate", "job.toml", "--json", *more))["data"] for more in ((), ("--fidelity", "wire"))]
    assert [run.pop("fidelity") for run in runs] == ["lean", "wire"]
    assert [run.pop("wall_s") > 0 for run in runs] == [True, True]
    assert [run.pop("training") for run in runs][1] == ""
    assert runs[0] == runs[1]


def in_processes(shoal: Shoal) -> Result:
    return shoal("simulate", "job.toml", "--json", "--workers", "2")


def test_several_processes_change_no_number(shoal: Shoal) -> None:
    runs = [envelope(one)["data"] for one in (shoal("simulate", "job.toml", "--json"), in_processes(shoal))]
    assert [run.pop("wall_s") > 0 for run in runs] == [True, True]
    assert [run.pop("training") for run in runs][1].endswith("in 2 processes")
    assert runs[0] == runs[1]


def test_people_see_a_table(shoal: Shoal) -> None:
    said = shoal("simulate", "job.toml", "--nodes", "4", "--set", "options.shift=1", "--set", "rounds=100").stdout
    rows = [line.split() for line in said.splitlines() if line.strip()[:1].isdigit()]
    numbers = [int(row[0]) for row in rows]
    assert numbers[-1] == 100
    assert 8 <= len(numbers) <= 12
    assert "eval/accuracy" in said
    assert "@" not in said, "points of a curve are not listed"


def test_faults_change_the_way_but_not_the_end(shoal: Shoal) -> None:
    faults = ("--faults", "message_loss=0.2", "--faults", "coordinator_crashes=2", "--faults", "delay_s=0.2")
    runs = [
        envelope(shoal("simulate", "job.toml", "--json", "--fault-seed", seed, *faults))["data"] for seed in (1, 1, 2)
    ]
    assert [run["state"] for run in runs] == ["done"] * 3
    first, again, other = ([version["closed_s"] for version in run["versions"]] for run in runs)
    assert first == again != other


def test_a_learner_without_parts_is_the_same_everywhere(shoal: Shoal) -> None:
    result = shoal("simulate", "job.toml", "--learner", "toy.py:lonely", "--json")
    assert "takes no option part: every node has the same data" in result.stderr
    assert envelope(result)["data"]["metrics"]["eval/loss"] == pytest.approx(0.125)


@pytest.mark.parametrize("name", ["alone", "any"])
def test_a_learner_with_a_part_alone_has_its_own(shoal: Shoal, name: str) -> None:
    result = shoal("simulate", "job.toml", "--learner", f"toy.py:{name}", "--json", "-o", "m.safetensors")
    assert "warning" not in result.stderr
    assert envelope(result)["data"]["metrics"]["eval/loss"] == pytest.approx((0.875 + 0.125 + 1.125) / 3)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--fidelity", "full"], 2, "use lean or wire"),
        (["--workers", "2", "--faults", "message_loss=0.1"], 2, "leave workers out"),
        (["--fidelity", "lean", "--faults", "message_loss=0.1"], 2, "leave fidelity out"),
        (["--faults", "message_lss=0.1"], 2, "did you mean 'message_loss'?"),
        (["--faults", "message_loss=much"], 2, "loss=much"),
        (["--faults", "cuts=1"], 2, "cuts"),
        (["--set", "learner="], 2, "--learner"),
        (["--learner", "gone.py:x"], 2, "gone.py"),
        (["--set", "options.shfit=1"], 2, "shfit"),
        (["--learner", "toy.py:broken"], 1, "no data here"),
        (["--set", "options.part=1"], 2, "all 3 nodes would have the same data"),
        (["--set", "algorithm.name=scaffold"], 2, "node-0: scaffold corrects every local gradient, and Toy does not"),
        (["--nodes", "2"], 2, "check min_nodes"),
    ],
)
def test_what_is_wrong_is_said(shoal: Shoal, arguments: list[str], code: int, says: str) -> None:
    result = shoal("simulate", "job.toml", *arguments)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert says in result.stderr
