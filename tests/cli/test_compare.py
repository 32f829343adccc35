"""`shoal compare`, and `--compare` of the commands that run jobs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.client import api as module
from shoal.runtime.http.retry import Backoff
from tests.cli.command_cases import run_files
from tests.cli.conftest import Shoal, envelope
from tests.cli.test_simulate import JOB, TOY
from tests.support.coordinator_views import a_job, a_version
from tests.support.fake_coordinator import FakeCoordinator, at
from tests.support.http_servers import Asked


@pytest.fixture(autouse=True)
def stage(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "job.toml").write_text(JOB)
    (place / "toy.py").write_text(TOY)
    monkeypatch.setattr(module, "TICK_S", 0.02)
    monkeypatch.setattr(module, "RECONNECT", Backoff(0.01, 0.02, 2.0))


def row(said: str, name: str) -> str:
    """The line of the table that begins with a name, single-spaced."""
    return next(" ".join(line.split()) for line in said.splitlines() if line.split()[:1] == [name])


def knows(fake: FakeCoordinator, name: str, factor: int = 1, state: str = "done") -> None:
    """A job that has ended, at the coordinator."""
    rows = [
        {"version": v, "node": node, "direction": direction, "bytes": factor * size}
        for v in (-1, 0, 1, 2)
        for node, direction, size in (("a", "up", 900), ("b", "up", 100), ("a", "down", 1000), ("b", "down", 2000))
    ]
    fake.answers |= {
        f"GET /jobs/{name}": a_job(name=name, state=state, version=2, versions=2),
        f"GET /jobs/{name}/versions": {"versions": [a_version(n) for n in range(3)]},
        f"GET /jobs/{name}/traffic": {
            "job": name,
            "rows": rows,
            "total": {"up": 4000 * factor, "down": 12_000 * factor},
        },
    }


# ------------------------------------------------------------------------------------------------------ shoal compare
def test_people_see_what_a_byte_buys(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    run_files(fake, place)
    result = shoal("compare", "a.json", "b.json", "--target", "0.92")
    assert result.exit_code == 0, result.output
    assert row(result.stdout, "a") == "a fedavg / rounds 93.0 % 93.0 % 3 310 B 620 B 600 B 2 s 100.0 %"
    assert row(result.stdout, "b") == "b fedavg / rounds 93.0 % 93.0 % 3 155 B 310 B 300 B 2 s 50.0 %"
    assert "bytes to 92.0 %" in result.stdout
    assert "bytes of a are the baseline" in result.stdout


def test_jobs_and_files_stand_beside_each_other(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    run_files(fake, place)
    knows(fake, "digits", 2)
    result = shoal("compare", "digits", "./a.json", "--baseline", "a", "--json", env=at(fake))
    data = envelope(result)["data"]
    digits, a = data["comparison"]["rows"]
    assert (digits["run"], digits["up_bytes"], digits["down_bytes"]) == ("digits", 8000, 24_000)
    assert (digits["best"], digits["syncs"]) == (0.92, 2)
    # Version 1 is the first within 2 % of 0.92; the bytes outside of any round count, and those of the round before it.
    assert (digits["version_to_target"], digits["bytes_to_target"]) == (1, 2 * 2 * 4000)
    assert digits["ratio"] == pytest.approx(32_000 / 930)
    assert a["ratio"] == 1
    assert data["runs"].keys() == {"digits", "a"}
    assert "heads and polls" in result.stderr
    assert [asked.query for asked in fake.asked if asked.path.endswith("/traffic")] == ["by=version&by=node&by=kind"]


def test_a_file_is_a_file_whatever_it_is_called(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    run_files(fake, place)
    (place / "a.json").rename(place / "of-old")
    assert "of-old" in shoal("compare", "of-old").stdout
    assert not fake.asked


def test_each_node_has_its_price(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    knows(fake, "digits")
    data = envelope(shoal("compare", "digits", "--json", env=at(fake)))["data"]
    (row_,) = data["comparison"]["rows"]
    assert (row_["up_bytes_to_target"], row_["down_bytes_to_target"]) == (2000, 6000)
    assert row_["nodes"] == [
        {"node": "a", "up_bytes": 3600, "down_bytes": 4000, "up_bytes_to_target": 1800, "down_bytes_to_target": 2000},
        {"node": "b", "up_bytes": 400, "down_bytes": 8000, "up_bytes_to_target": 200, "down_bytes_to_target": 4000},
    ]
    said = shoal("compare", "digits", "--by", "node", env=at(fake)).stdout
    lines = [" ".join(line.split()) for line in said.splitlines()]
    assert "digits a 3.6 kB 4 kB 1.8 kB 2 kB 3.8 kB" in lines
    assert "digits b 400 B 8 kB 200 B 4 kB 4.2 kB" in lines
    assert "digits all 4 kB 12 kB 2 kB 6 kB 8 kB" in lines
    assert "digits b" not in " ".join(shoal("compare", "digits", env=at(fake)).stdout.split())


def test_a_target_that_was_not_reached_has_no_price(shoal: Shoal, fake: FakeCoordinator) -> None:
    knows(fake, "digits")
    said = shoal("compare", "digits", "--by", "node", "--target", "0.99", env=at(fake)).stdout
    assert "digits b 400 B 8 kB – – –" in [" ".join(line.split()) for line in said.splitlines()]


def test_a_file_of_an_earlier_release_says_so(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    run_files(fake, place)
    result = shoal("compare", "a.json", "--by", "node")
    assert row(result.stdout, "a").startswith("a fedavg")
    assert "a: written without bytes per node" in result.stderr


def test_runs_of_one_name_are_told_apart(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    run_files(fake, place)
    (place / "old").mkdir()
    (place / "old" / "a.json").write_text((place / "a.json").read_text())
    data = envelope(shoal("compare", "a.json", "old/a.json", "a.json", "--json"))["data"]
    assert [one["run"] for one in data["comparison"]["rows"]] == ["a", "old/a.json"]


@pytest.mark.parametrize(
    ("arguments", "code", "error", "says"),
    [
        (["gone.json"], 2, "usage.file", "gone.json: No such file"),
        (["nobody", "a.json"], 1, "path.unknown", "nobody"),
        (["job.toml", "a.json"], 2, "run.invalid", "not a record of a run"),
        (["./job.toml"], 2, "run.invalid", "not a record of a run"),
        (["a.json", "--metric", "eval/acuracy"], 2, "run.metric", "did you mean 'eval/accuracy'?"),
        (["a.json", "--baseline", "c"], 2, "run.unknown", "one of a"),
        (["empty"], 2, "run.empty", "empty has no version yet"),
    ],
)
def test_what_cannot_be_compared_is_said(
    shoal: Shoal, fake: FakeCoordinator, place: Path, arguments: list[str], code: int, error: str, says: str
) -> None:
    run_files(fake, place)
    knows(fake, "empty")
    fake.answers["GET /jobs/empty/versions"] = {"versions": []}
    result = shoal("compare", *arguments, "--json", env=at(fake))
    said = envelope(result)["error"]
    assert (result.exit_code, said["code"]) == (code, error)
    assert says in said["message"] + said["hint"]


# --------------------------------------------------------------------------------------------------------- export
def test_an_exported_run_is_the_job(shoal: Shoal, fake: FakeCoordinator) -> None:
    knows(fake, "digits")
    result = shoal("export", "digits", "--record", "digits.json", env=at(fake))
    assert result.stdout == "digits.json: 3 versions\n"
    there, here = (
        envelope(shoal("compare", name, "--json", env=at(fake)))["data"]["comparison"]
        for name in ("digits", "digits.json")
    )
    assert there == here
    assert shoal("export", "digits", "--record", "digits.json", env=at(fake)).exit_code == 2


# ------------------------------------------------------------------------------------------------------ shoal simulate
def test_one_job_under_several_presets(shoal: Shoal, place: Path) -> None:
    arguments = ("--compare", "fedavg,fedavg-c03", "--record", "runs.json", "--target", "0.6")
    data = envelope(shoal("simulate", "job.toml", *arguments, "--json"))["data"]
    assert [one["run"] for one in data["comparison"]["rows"]] == ["fedavg", "fedavg-c03"]
    everybody, one = (data["runs"][name] for name in ("fedavg", "fedavg-c03"))
    assert [version["reports"] for version in everybody["versions"]] == [0, 3, 3, 3]
    reports = [version["reports"] for version in one["versions"]]
    assert reports == [0, 2, 1, 1], "the first update is longer than a model of zeros: none counts alone"
    assert everybody["seed"] == one["seed"]
    again = envelope(shoal("compare", "runs-fedavg.json", "runs-fedavg-c03.json", "--target", "0.6", "--json"))["data"]
    for row_then, row_now in zip(data["comparison"]["rows"], again["comparison"]["rows"], strict=True):
        assert row_now | {"run": ""} == row_then | {"run": ""}
        assert row_now["run"] == f"runs-{row_then['run']}"


def test_bytes_of_a_record_only_grow(shoal: Shoal, place: Path) -> None:
    data = envelope(shoal("simulate", "job.toml", "--record", "run.json", "--json"))["data"]
    run = json.loads((place / "run.json").read_text())
    totals = [(version["up_bytes"], version["down_bytes"]) for version in run["versions"]]
    assert totals == sorted(totals)
    assert totals[-1] <= (run["up_bytes"], run["down_bytes"]) == (data["up_bytes"], data["down_bytes"])
    assert sum(version["up_bytes"] for version in data["versions"]) == totals[-1][0]
    assert run["versions"][0]["closed_s"] == 0
    for table in (run, *run["versions"]):
        assert sum(up for up, _ in table["nodes"].values()) == table["up_bytes"]
        assert sum(down for _, down in table["nodes"].values()) == table["down_bytes"]
    assert run["nodes"].keys() == {"node-0", "node-1", "node-2"}


def test_every_version_is_measured_on_held_out_data(shoal: Shoal, place: Path) -> None:
    (place / "job.toml").write_text(JOB + '\n[held_out]\nlearner = "toy.py:learner"\noptions = {shift = 1.0}\n')
    data = envelope(shoal("simulate", "job.toml", "--json"))["data"]
    losses = [version["metrics"]["held_out/loss"] for version in data["versions"]]
    assert losses == pytest.approx([1, 0.5, 0.25, 0.125])  # three nodes at 0, 1 and 2 go half of the way to 1
    assert data["metrics"]["held_out/loss"] == pytest.approx(0.125)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--compare", "fedavg,fedsdg"], "did you mean 'fedsgd'?"),
        (["--compare", ","], "fedavg-c03"),
        (["--compare", "fedavg", "-o", "m.safetensors"], "--record"),
        (["--compare", "fedavg", "--metric", "eval/f1"], "has no eval/f1"),
    ],
)
def test_a_comparison_that_cannot_be_is_refused(shoal: Shoal, arguments: list[str], says: str) -> None:
    result = shoal("simulate", "job.toml", *arguments)
    assert result.exit_code == 2, result.output
    assert says in result.stderr


# ------------------------------------------------------------------------------------------------------------ shoal run
def submitted(fake: FakeCoordinator) -> list[str]:
    return [asked.json()["spec"]["name"] for asked in fake.asked if asked.method == "POST"]


def answering(fake: FakeCoordinator, state: str = "done") -> None:
    """A coordinator that has finished the jobs of two presets as soon as it is asked."""
    for name, factor in (("toy-fedavg", 2), ("toy-fedsgd", 1)):
        knows(fake, name, factor, state)

    def create(asked: Asked) -> dict[str, object]:
        return a_job(name=asked.json()["spec"]["name"], state="waiting", version=0)

    fake.answers["POST /jobs"] = create
    fake.events = [[("hello", {})] for _ in range(100)]  # each connection asks for the job's state


def deeds(fake: FakeCoordinator) -> list[str]:
    """Calls: jobs made, and streams watched (a resumed stream counts once)."""
    done = [asked.path.rpartition("/")[2] for asked in fake.asked if asked.method == "POST" or "/stream" in asked.path]
    return [deed for place, deed in enumerate(done) if deed == "jobs" or done[place - 1 : place] != [deed]]


def test_a_coordinator_runs_one_job_after_the_other(shoal: Shoal, fake: FakeCoordinator) -> None:
    answering(fake)
    result = shoal("run", "job.toml", "--compare", "fedavg,fedsgd", "--set", "seed=3", "--json", env=at(fake))
    data = envelope(result)["data"]
    assert [(one["run"], one["ratio"]) for one in data["comparison"]["rows"]] == [
        ("toy-fedavg", 1),
        ("toy-fedsgd", 0.5),
    ]
    posts = [asked.json()["spec"] for asked in fake.asked if asked.method == "POST"]
    assert [(one["name"], one["algorithm"]["name"], one["seed"]) for one in posts] == [
        ("toy-fedavg", "fedavg", 3),
        ("toy-fedsgd", "fedsgd", 3),
    ]
    assert deeds(fake) == ["jobs", "stream", "jobs", "stream"]


def test_together_all_are_made_first(shoal: Shoal, fake: FakeCoordinator) -> None:
    answering(fake)
    assert shoal("run", "job.toml", "--compare", "fedavg,fedsgd", "--together", env=at(fake)).exit_code == 0
    assert deeds(fake) == ["jobs", "jobs", "stream"]
    assert {asked.query for asked in fake.asked if "/stream" in asked.path} == {"job=toy-fedavg", "job=toy-fedsgd"}


def test_together_they_can_be_left_alone(shoal: Shoal, fake: FakeCoordinator) -> None:
    answering(fake)
    arguments = ("run", "job.toml", "--compare", "fedavg,fedsgd", "--detach", "--name", "mine")
    refused = shoal(*arguments, env=at(fake))
    assert refused.exit_code == 2
    assert "--together" in refused.stderr
    assert fake.asked == []
    result = shoal(*arguments, "--together", env=at(fake))
    assert "shoal compare mine-fedavg mine-fedsgd" in result.stdout
    assert submitted(fake) == ["mine-fedavg", "mine-fedsgd"]


def test_a_job_that_ends_badly_ends_the_comparison(shoal: Shoal, fake: FakeCoordinator) -> None:
    answering(fake, "stopped")
    result = shoal("run", "job.toml", "--compare", "fedavg,fedsgd", env=at(fake))
    assert result.exit_code == 1
    assert "toy-fedavg is stopped" in result.stderr
    assert submitted(fake) == ["toy-fedavg"]
