"""The commands of a README, one after the other, against a real coordinator and a real edge client."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from tests.cli.conftest import Shoal, envelope, process
from tests.cli.test_simulate import JOB, TOY
from tests.support.ports import free_port

pytestmark = [pytest.mark.timeout(180)]


Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def ask(shoal: Shoal) -> Ask:
    """The data of a command that must succeed; in this process, since one for each would take longer than the rest."""

    def data(*arguments: object) -> dict[str, Any]:
        result = shoal(*arguments, "--json")
        assert result.exit_code == 0, result.output
        found: dict[str, Any] = envelope(result)["data"]
        return found

    return data


def ended(running: subprocess.Popen[str], number: int) -> tuple[int, str]:
    """Its exit code after that signal, and what it said."""
    running.send_signal(number)
    output, said = running.communicate(timeout=60)
    return running.returncode, output + said


@pytest.fixture
def coordinator(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    """`shoal coordinator` in this folder, found by the other commands as on any machine."""
    port = free_port()
    running = process("coordinator", "--port", port)
    monkeypatch.setenv("SHOAL_CLIENT__URL", f"http://127.0.0.1:{port}")
    assert running.stderr is not None
    for line in running.stderr:
        if "ready" in line:
            break
    yield running
    if running.poll() is None:
        running.kill()
    running.communicate()


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start commands that are ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def begin(*arguments: object) -> subprocess.Popen[str]:
        started.append(process(*arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        return started[-1]

    yield begin
    for one in started:
        one.kill()
        one.wait()


def test_from_an_empty_folder_to_a_model(
    place: Path, ask: Ask, coordinator: subprocess.Popen[str], start: Callable[..., subprocess.Popen[str]]
) -> None:
    (place / "toy.py").write_text(TOY)
    (place / "job.toml").write_text(JOB.replace("min_nodes = 3", "min_nodes = 1"))
    assert ask("jobs", "list") == {"jobs": [], "split_jobs": []}
    use = ask("token", "create", "--name", "a")["use"].replace("FILE.py:learner", "toy.py:learner").split()
    assert use[:2] == ["shoal", "join"]
    node = start(*use[1:], "--state-dir", "state")
    done = ask("run", "job.toml")
    assert (done["job"]["state"], done["nodes"][0]["name"]) == ("done", "a")
    assert done["nodes"][0]["up_bytes"] > 0
    assert [one["name"] for one in ask("nodes", "list")["nodes"]] == ["a"]
    made = ask("export", "toy", "--version", "last", "-o", "m.safetensors", "--metrics", "m.csv")
    assert made["model"]["version"] == 3
    assert load_file("m.safetensors")["w"].tolist() == [0.0, 0.0]
    assert len((place / "m.csv").read_text().splitlines()) == 5

    again = ask("run", "job.toml", "--name", "second", "--model", "m.safetensors", "--set", "rounds=1")
    assert again["job"]["version"] == 1
    waiting = ask("run", "job.toml", "--name", "third", "--detach", "--set", "schedule.min_nodes=9")
    assert waiting["job"]["state"] == "waiting"
    assert ask("jobs", "stop", "third")["job"]["state"] == "stopped"
    assert "by an operator" in ask("jobs", "show", "third")["job"]["state_why"]
    assert ask("doctor")["healthy"]

    ask("nodes", "remove", "a", "--yes")
    assert node.wait(60) == 3  # its credential is revoked
    code, said = ended(coordinator, signal.SIGINT)
    assert code == 130
    assert "Traceback" not in said
    assert not re.search(r"sh[ont]_[A-Za-z0-9_-]{20}", said)  # no secret is printed


def test_twice_at_the_same_port(place: Path, coordinator: subprocess.Popen[str]) -> None:
    port = re.search(r"\d+$", coordinator.args[-1])  # type: ignore[index]
    assert port
    second = process("coordinator", "--port", port[0], "--data", "other")
    _, said = second.communicate(timeout=60)
    assert second.returncode == 1
    assert "--port" in said
    assert not (place / "other").exists()
    assert ended(coordinator, signal.SIGTERM)[0] == 0
