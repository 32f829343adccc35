"""`shoal demo`, from start to end: what a stranger sees first."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest

from shoal.cli.app import COMMANDS
from shoal.cli.demos import demo as command
from shoal.cli.demos import gossip
from shoal.cli.demos.afterwards import NEXT, program, stays
from shoal.cli.demos.demo import bars, versions_per_part
from shoal.cli.demos.failover import GOSSIP_ROUNDS
from shoal.cli.demos.plumbing import HOST, DemoOptions, DemoPlan, check, device_of, free_port, spec, start
from shoal.cli.terminal.output import Flags, out
from shoal.core.errors import ShoalError
from shoal.extras import install_hint
from tests.cli.conftest import ROOT, Shoal, process
from tests.support.waiting import until

LEFT_S = 60


def folders(place: Path) -> list[Path]:
    return sorted(place.glob("shoal-demo-*"))


@pytest.fixture
def tmpdir_of_demo(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the demo makes its folder, so that another one on this machine is not taken for it."""
    (place / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(place / "tmp"))
    return place / "tmp"


def children_of(pid: int) -> list[int]:
    """The processes that a process has started."""
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(line) for line in found.stdout.split()]


def test_the_job_that_comes_with_shoal_is_sound() -> None:
    found = spec(DemoPlan(DemoOptions(rounds=7, clients=3, split="iid", seed=5), port=1))
    assert (found["rounds"], found["seed"], found["schedule"]["min_nodes"]) == (7, 5, 3)
    assert found["options"] == {"split": "iid"}
    assert found["held_out"]["learner"] == "shoal.learn.digits:held_out"


@pytest.mark.parametrize(("asked", "device"), [(None, "cpu"), ("auto", "cpu"), ("cuda:1", "cuda:1")])
def test_a_small_model_takes_the_processor(
    asked: str | None, device: str, shoal: Shoal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients, peers, and the evaluation of each version."""
    plan = DemoPlan(DemoOptions(clients=2), 1, device_of(asked))
    started: list[list[str]] = []
    start(SimpleNamespace(start=lambda _name, arguments, **_: started.append(arguments)), plan)  # type: ignore[arg-type]
    clients = [one for one in started if one[0] == "join"]
    assert [one[one.index("--device") + 1] for one in clients] == [device, device]
    assert spec(plan)["held_out"]["options"] == {"device": device}
    peers: list[gossip.DemoPeers] = []
    monkeypatch.setattr(gossip, "demo", peers.append)
    monkeypatch.setattr(command, "free_ports", lambda count: tuple(range(count)))
    assert shoal("demo", "--gossip", *([f"--device={asked}"] if asked else [])).exit_code == 0
    assert [one.device for one in peers] == [device]


def test_without_a_wish_the_demo_asks_for_no_card(shoal: Shoal, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[DemoPlan] = []

    def begin(_processes: object, plan: DemoPlan) -> None:
        plans.append(plan)
        raise ShoalError("enough", code="demo.test")

    monkeypatch.setattr(command, "start", begin)
    monkeypatch.setattr(command, "free_port", lambda port: port or 1)
    assert shoal("demo", "--port=0").exit_code != 0
    assert [plan.device for plan in plans] == ["cpu"]


def test_a_missing_extra_is_said_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.cli.demos.plumbing.find_spec", lambda name: None if name == "torch" else name)
    with pytest.raises(ShoalError, match="the demo needs torch, not installed") as caught:
        check(DemoOptions(), 4)
    assert (caught.value.code, caught.value.hint) == ("usage.extra", install_hint("demo"))


@pytest.mark.parametrize(
    ("keep", "terminals", "json_", "stay"),
    [
        (None, ("stdin", "stdout"), False, True),
        (None, ("stdout",), False, False),
        (None, ("stdin",), False, False),
        (None, ("stdin", "stdout"), True, False),
        (False, ("stdin", "stdout"), False, False),
        (True, (), True, True),
    ],
)
def test_the_page_stays_for_a_person(
    monkeypatch: pytest.MonkeyPatch, keep: bool | None, terminals: tuple[str, ...], json_: bool, stay: bool
) -> None:
    for name in ("stdin", "stdout"):
        monkeypatch.setattr(sys, name, SimpleNamespace(isatty=lambda name=name: name in terminals))
    monkeypatch.setattr(out, "flags", Flags(json=json_))
    assert stays(keep) is stay


def test_the_next_commands_can_be_typed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command of a virtual environment that is not active is named by its path."""
    (place / "my venv").mkdir()
    command = place / "my venv/shoal"
    command.touch(0o755)
    monkeypatch.setenv("PATH", str(place))
    assert program("my venv/shoal") == f"'{command}'"
    monkeypatch.setenv("PATH", str(command.parent))
    assert program("my venv/shoal") == "shoal"
    assert program("/lib/shoal/__main__.py") == f"{sys.executable} -m shoal"
    assert {text.split()[0] for text, _ in NEXT} <= {entry.name for entry in COMMANDS}


def test_the_job_of_drifting_streams_is_sound() -> None:
    found = spec(DemoPlan(DemoOptions(clients=3, seed=5, drift=True), port=1))
    assert (found["algorithm"]["name"], found["schedule"]["name"]) == ("dynamic", "divergence")
    assert (found["seed"], found["schedule"]["min_nodes"]) == (5, 3)
    batches = found["algorithm"]["local_steps"]
    assert found["options"]["drift"] == f"permute@{batches // 2}"
    assert not found.get("held_out"), "what no node has does not drift"


@pytest.mark.parametrize(
    ("checks", "counts", "row"),
    [
        ([], [0, 0, 0, 0], "    "),
        ([20.0], [0, 0, 0, 1], "   █"),
        ([0.5, 4.9, 7.5, 19.8], [2, 1, 0, 1], "█▄ ▄"),
    ],
)
def test_synchronizations_over_the_data(checks: list[float], counts: list[int], row: str) -> None:
    versions = [{"metrics": {"train/checks": made_at}} for made_at in checks] + [{"metrics": {}}]
    assert versions_per_part(versions, 20, 4) == counts
    assert bars(counts) == row


@pytest.mark.timeout(300)
def test_the_drift_is_seen_and_answered(tmpdir_of_demo: Path) -> None:
    running = process("demo", "--drift", "--json", "--port", "0")
    output, said = running.communicate(timeout=280)
    assert running.returncode == 0, said
    data = json.loads(output)["data"]
    counts = data["synchronizations"]
    before, after = counts[2:5], counts[5:8]  # half-way is between 5 and 6, and not all nodes come there at once
    assert max(after) > max(before), counts
    assert sum(counts) == data["rounds"] >= 5
    assert data["accuracy"] >= 0.90
    assert data["up_bytes"] + data["down_bytes"] < 150 * 4 * 2 * data["parameters"] * 4 / 4
    assert folders(tmpdir_of_demo) == []


@pytest.mark.timeout(300)
def test_peers_without_a_server_become_one(tmpdir_of_demo: Path) -> None:
    running = process("demo", "--gossip", "--json")
    output, said = running.communicate(timeout=280)
    assert running.returncode == 0, said
    data = json.loads(output)["data"]
    print(f"{data['wall_s']:.1f} s, {data['accuracy']:.3f}")  # noqa: T201
    peers = data["peers"]
    assert [peer["name"] for peer in peers] == [f"peer-{number}" for number in range(1, 6)]
    assert all(peer["rounds"] == 30 for peer in peers)
    assert data["accuracy"] >= 0.93
    accuracies = [peer["accuracy"] for peer in peers]
    assert max(accuracies) - min(accuracies) < 0.01, "they hold one model"
    model = 4 * (64 * 64 + 64 + 64 * 10 + 10)
    assert all(min(peer["sent_bytes"], peer["received_bytes"]) > 5 * model for peer in peers)
    assert folders(tmpdir_of_demo) == []


def test_a_drift_needs_a_server(shoal: Shoal) -> None:
    result = shoal("demo", "--gossip", "--drift")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--drift needs a server" in result.stderr


def test_a_taken_port_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert free_port(port) not in (0, port)
    assert free_port(port) == port
    assert free_port(0) < 32_768, "beyond are those of outgoing connections"


@pytest.mark.parametrize("arguments", [["--split", "shards:0"], ["--clients", "64", "--split", "shards:200"]])
def test_a_division_that_cannot_be_is_refused_before_anything_starts(shoal: Shoal, arguments: list[str]) -> None:
    result = shoal("demo", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")


@pytest.mark.timeout(300)
def test_the_demo_learns_digits_and_leaves_nothing(tmpdir_of_demo: Path) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        running = process("demo", "--json", "--port", taken.getsockname()[1])
        output, said = running.communicate(timeout=280)
    assert running.returncode == 0, said
    data = json.loads(output)["data"]
    print(f"{data['wall_s']:.1f} s, {data['held_out_accuracy']:.3f}")  # noqa: T201
    assert data["held_out_accuracy"] >= 0.95
    assert data["accuracy"] >= 0.90
    assert (data["rounds"], data["nodes"]) == (30, 4)
    # 30 rounds and the last evaluation, for each of four clients: no fewer bytes than the models alone.
    assert data["down_bytes"] >= 31 * 4 * data["parameters"] * 4
    assert data["up_bytes"] >= 30 * 4 * data["parameters"] * 4
    assert re.search(r"port \d+ is taken: using \d+", said)
    assert re.search(r"dashboard +http://127\.0\.0\.1:\d+/jobs/digits", said)
    assert folders(tmpdir_of_demo) == []


@pytest.mark.timeout(300)
def test_keep_stays_until_ctrl_c(tmpdir_of_demo: Path) -> None:
    running = process("demo", "--keep", "--rounds", "1", "--clients", "1", "--split", "iid", "--port", "0")
    assert running.stdout is not None
    assert running.stderr is not None
    lines = []
    for line in running.stdout:
        lines.append(line)
        if "still running" in line:
            break
        if "dashboard" in line:  # it is said when it is there, not before
            with urllib.request.urlopen(line.split()[-1]) as page:
                assert b"<html" in page.read()
    url = re.search(r"http://127\.0\.0\.1:\d+", "".join(lines))
    assert url, lines
    children = children_of(running.pid)
    assert len(children) == 2
    with urllib.request.urlopen(f"{url[0]}/api/v1/jobs/digits") as answer:
        assert json.load(answer)["state"] == "done"
    running.send_signal(signal.SIGINT)
    rest, said = running.communicate(timeout=LEFT_S)
    assert running.returncode == 0, said
    assert "stopping" in rest
    assert all(re.search(rf" {re.escape(command)} +{re.escape(why)}", "".join(lines)) for command, why in NEXT), lines
    assert folders(tmpdir_of_demo) == []
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130)])
def test_ctrl_c_in_the_middle_leaves_nothing(tmpdir_of_demo: Path, number: int, code: int) -> None:
    running = process("demo", "--rounds", "100000", "--port", "0")
    until("its processes", lambda: len(children_of(running.pid)) >= 5)
    children = children_of(running.pid)
    running.send_signal(number)
    _, said = running.communicate(timeout=LEFT_S)
    assert running.returncode == code, said
    assert "Traceback" not in said
    assert folders(tmpdir_of_demo) == []
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)


@pytest.mark.timeout(300)
def test_a_client_that_crashes_is_told_and_all_is_cleaned_up(tmpdir_of_demo: Path) -> None:
    running = process("demo", "--rounds", "100000", "--clients", "2", "--port", "0", "--json")
    until("its processes", lambda: len(children_of(running.pid)) >= 3)
    victim = children_of(running.pid)[-1]
    subprocess.run(["kill", "-KILL", str(victim)], check=True)
    output, said = running.communicate(timeout=LEFT_S)
    assert running.returncode == 1, said
    error = json.loads(output)["error"]
    assert error["code"] == "demo.crashed"
    assert re.search(r"node-\d has ended with exit code -9", error["message"])
    assert folders(tmpdir_of_demo) == []


@pytest.mark.timeout(300)
def test_a_job_outlives_its_coordinator(tmpdir_of_demo: Path) -> None:
    running = process("demo", "--failover", "--json", "--port", "0", "--clients", "3", "--rounds", "9")
    output, said = running.communicate(timeout=280)
    assert running.returncode == 0, said
    data = json.loads(output)["data"]
    assert data["killed_at_version"] >= 4
    assert data["back_at_version"] > data["killed_at_version"]
    assert data["versions"] == max(9, data["back_at_version"])
    assert sorted(data["gossip_rounds"]) == ["node-1", "node-2", "node-3"]
    assert min(data["gossip_rounds"].values()) >= GOSSIP_ROUNDS
    assert data["gossip_bytes"] > 0
    assert data["after"] > 0.8, "what was learned before and meanwhile is not lost"
    assert not folders(tmpdir_of_demo)


@pytest.mark.parametrize("others", [["--drift"], ["--clients", "1", "--split", "iid"], ["--rounds", "2"]])
def test_a_failover_of_which_nothing_would_be_seen(others: list[str], shoal: Shoal) -> None:
    answer = shoal("demo", "--failover", *others)
    assert answer.exit_code == 2
    assert "not show a failover" in answer.stderr


ALONE = """
import fcntl, os, socket, struct, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
    fcntl.ioctl(probe, 0x8914, struct.pack("16sh", b"lo", 0x41))  # SIOCSIFFLAGS: IFF_UP | IFF_RUNNING
assert [name for _, name in socket.if_nameindex()] == ["lo"], socket.if_nameindex()
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""A process that has nothing but the loopback of its own network namespace, and becomes another program."""


def alone() -> list[str]:
    """The words before a Python command that leave it without a network. A system that forbids this fails the test."""
    words = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]
    tried = subprocess.run([*words, "true"], capture_output=True, text=True, check=False)
    assert tried.returncode == 0, f"allow network namespaces here, or run the tests as root: {tried.stderr}"
    return [*words, sys.executable, "-c", ALONE]


@pytest.mark.timeout(300)
def test_the_demo_needs_no_network(tmpdir_of_demo: Path) -> None:
    demo = ["-m", "shoal", "demo", "--json", "--rounds", "1", "--clients", "1", "--split", "iid", "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    found = subprocess.run([*alone(), *demo], capture_output=True, text=True, check=False, env=environment, timeout=280)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["data"]["rounds"] == 1
    assert folders(tmpdir_of_demo) == []
