"""Common behavior of all commands: flags anywhere, one envelope, plain words, exit codes."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from shoal.cli.app import COMMANDS as ENTRIES
from shoal.cli.app import app
from shoal.cli.lazy import Entry, made
from shoal.cli.process import program
from shoal.cli.process.program import exit_code, flags_first
from shoal.cli.terminal.output import plain
from shoal.core import errors
from shoal.plugins import KINDS
from tests.cli.command_cases import COMMANDS, leaves
from tests.cli.conftest import Shoal, envelope, process
from tests.conventions.sources import ROOT
from tests.support.coordinator_views import a_job
from tests.support.fake_coordinator import FakeCoordinator, Problem

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


@pytest.mark.parametrize(
    ("given", "parsed"),
    [
        ("jobs list --json", "--json jobs list"),
        ("jobs --quiet list -v", "--quiet -v jobs list"),
        ("run a.toml --config b.toml --watch", "--config b.toml run a.toml --watch"),
        ("run a.toml --config=b.toml", "--config=b.toml run a.toml"),
        ("run a.toml --config", "run a.toml --config"),
        ("run a.toml --config --json", "--json run a.toml --config"),
        ("join --option=x=--json", "join --option=x=--json"),
        ("export -- --json", "export -- --json"),
        ("--json --json a", "--json --json a"),
    ],
)
def test_flags_may_stand_anywhere(given: str, parsed: str) -> None:
    assert flags_first(given.split()) == parsed.split()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidJob("x"), 2),
        (errors.ShoalError("x", code="config.unknown"), 2),
        (errors.ShoalError("x", code="usage.name"), 2),
        (errors.Unreachable("x"), 3),
        (errors.Unreachable("x", code="network.slow"), 3),
        (errors.NotAllowed("x"), 3),
        (errors.NotAllowed("x", code="token.invalid"), 3),
        (errors.ShoalError("x", code="job.time-out"), 4),
        (errors.Unreachable("x", code="port.in-use"), 1),
        (errors.Refused("x", code="job.unknown"), 1),
        (errors.StorageFailed("x"), 1),
        (errors.LearnerFailed("x"), 1),
        (errors.InvalidPayload("x"), 1),
        (errors.ShoalError("x", code="job.stopped"), 1),
    ],
)
def test_every_kind_of_error_has_its_exit_code(error: errors.ShoalError, code: int) -> None:
    assert exit_code(error) == code


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_help_lists_what_a_command_says_of_itself(entry: Entry) -> None:
    command = made(entry)
    assert str(command.help).split("\n\n")[0] == entry.summary
    assert (command.name, command.rich_help_panel, command.short_help) == (entry.name, entry.panel, None)


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_a_paragraph_of_the_help_is_wrapped_once(command: str) -> None:
    assert [line for line in str(leaves()[command].help).split("\n\n") if "\n" in line] == []


def test_every_command_has_a_case() -> None:
    assert set(COMMANDS) == set(leaves())


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_prints_one_envelope(shoal: Shoal, fake: FakeCoordinator, place: Path, command: str) -> None:
    case = COMMANDS[command]
    case.prepare(fake, place)
    result = shoal(*command.split(), *case.arguments, "--json", env={"SHOAL_CLIENT__URL": fake.url})
    assert result.exit_code == case.exit_code, result.output
    found = envelope(result)
    if case.exit_code:
        assert found["error"]["code"] == case.error
    else:
        assert found["data"].keys() >= set(case.keys)


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_speaks_plainly_into_a_pipe(
    shoal: Shoal, fake: FakeCoordinator, place: Path, command: str
) -> None:
    case = COMMANDS[command]
    case.prepare(fake, place)
    result = shoal(*command.split(), *case.arguments, env={"SHOAL_CLIENT__URL": fake.url})
    assert result.exit_code == case.exit_code
    assert not CONTROL.search(result.output), result.output
    if case.exit_code:
        assert result.stdout == ""
        assert result.stderr.splitlines()[-2:][0].startswith("error: ")
    else:
        assert result.stdout.strip()


@pytest.mark.parametrize("command", ["", *sorted({*COMMANDS, *(name.split()[0] for name in COMMANDS)})])
def test_every_command_has_help(shoal: Shoal, command: str) -> None:
    for option in ("--help", "-h"):
        result = shoal(*command.split(), option)
        assert result.exit_code == 0
        assert "Usage: shoal" in result.stdout
        assert "bool" not in result.stdout, "a flag takes no value"
        assert not CONTROL.search(result.output)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("jbos", "Did you mean 'jobs'"),
        ("jobs shwo x", "Did you mean 'show'"),
        ("sim", "Did you mean 'simulate'"),
        ("al", "Did you mean 'alerts', 'algorithms'"),
        ("run", "JOB.toml"),
        ("run a.toml --wathc", "--watch"),
        ("demo --rounds many", "rounds"),
        ("demo --rounds 0", "rounds"),
        ("jobs stop x --when later", "when"),
        ("token", "Missing command"),
        ("run a.toml --config", "--config"),
    ],
)
def test_usage_errors_say_what_is_wrong(shoal: Shoal, arguments: str, says: str) -> None:
    result = shoal(*arguments.split())
    assert result.exit_code == 2
    assert result.stdout == ""
    assert says in result.stderr
    found = envelope(shoal(*arguments.split(), "--json"))
    assert found["error"]["code"] == "usage.invalid"
    assert says in found["error"]["message"]


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ("simulate a.toml --algorithm fedavg", "did you mean --set algorithm.name=…?"),
        ("simulate a.toml --rounds 3", "did you mean --set rounds=…?"),
        ("run a.toml --init-timeout-s 3", "did you mean --set init_timeout_s=…?"),
        ("run a.toml --no-such 3", "shoal run --help tells more"),
        ("coordinator --rounds 3", "shoal coordinator --help tells more"),
    ],
)
def test_an_option_that_is_a_key_of_the_job_file_is_told_so(shoal: Shoal, arguments: str, hint: str) -> None:
    assert f"hint: {hint}" in shoal(*arguments.split()).stderr
    assert envelope(shoal(*arguments.split(), "--json"))["error"]["hint"] == hint


def test_alone_it_shows_its_help(shoal: Shoal) -> None:
    result = shoal()
    assert result.exit_code == 2
    assert "Usage: shoal" in result.stdout
    assert envelope(shoal("--json"))["error"]["code"] == "usage.invalid"


def test_groups_alone_list(shoal: Shoal, fake: FakeCoordinator) -> None:
    fake.answers = {"GET /jobs": {"jobs": []}, "GET /nodes": {"nodes": []}}
    env = {"SHOAL_CLIENT__URL": fake.url}
    assert envelope(shoal("jobs", "--json", env=env))["data"] == {"jobs": [], "split_jobs": []}
    assert envelope(shoal("nodes", "--json", env=env))["data"] == {"nodes": []}
    assert "mnist" in shoal("data").stdout
    assert "client.url" in shoal("config").stdout


def test_the_version(shoal: Shoal) -> None:
    from shoal import __version__

    assert shoal("--version").stdout.startswith(f"shoal {__version__} (Python 3.")
    assert envelope(shoal("--version", "--json"))["data"].keys() == {"shoal", "python", "torch", "platform"}


def test_errors_in_plain_words_with_a_hint(shoal: Shoal, fake: FakeCoordinator) -> None:
    fake.answers["GET /jobs/x"] = Problem(404, "job.unknown", "no job is called 'x'", "jobs here: [digits]")
    result = shoal("jobs", "show", "x", "--url", fake.url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: no job is called 'x'\nhint: jobs here: [digits]\n"
    found = envelope(shoal("jobs", "show", "x", "--url", fake.url, "--json"))
    assert found["error"] == {"code": "job.unknown", "message": "no job is called 'x'", "hint": "jobs here: [digits]"}


def test_a_bug_is_told_as_one(shoal: Shoal, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setitem(KINDS, "algorithm", broken)
    result = shoal("algorithms", "--json")
    assert result.exit_code == 1
    assert envelope(result)["error"]["code"] == "internal"
    assert "ZeroDivisionError" in result.stderr  # the traceback


def test_quiet_says_only_the_result(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    COMMANDS["run"].prepare(fake, place)
    loud, quiet = (shoal("run", "job.toml", "--detach", "--url", fake.url, *more) for more in ([], ["--quiet"]))
    assert "is submitted" in loud.stdout
    assert "is submitted" not in quiet.output


def test_verbose_says_more_but_not_on_stdout(shoal: Shoal, fake: FakeCoordinator) -> None:
    fake.answers["GET /jobs"] = {"jobs": []}
    result = shoal("jobs", "list", "--verbose", "--json", "--url", fake.url)
    assert envelope(result)["status"] == "ok"
    assert f"GET {fake.url}/api/v1/jobs" in result.stderr


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_envelopes_hold_no_number_that_json_lacks(number: float) -> None:
    text = json.dumps(plain({"a": [number], "b": Path("x"), "c": {1: (True, None)}}), allow_nan=False)
    assert json.loads(text)["a"][0] in {"NaN", "Infinity", "-Infinity"}
    assert json.loads(text)["c"] == {"1": [True, None]}


# In a process of its own
def test_help_is_quick() -> None:
    """The budget is 0.25 s on a quiet machine; here the work is counted, which other processes cannot lengthen."""
    best = min(cpu_seconds("--help") for _ in range(3))
    sys.stdout.write(f"shoal --help: {best:.3f} s of processor time\n")
    assert best < 0.5


def cpu_seconds(*arguments: str) -> float:
    before = os.times()
    assert process(*arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).wait() == 0
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def test_a_closed_pipe_is_no_crash() -> None:
    running = process("algorithms", stdout=subprocess.PIPE)
    assert running.stdout is not None
    running.stdout.close()
    assert running.wait(60) in (0, 1)
    assert running.stderr is not None
    assert "Traceback" not in running.stderr.read()
    running.stderr.close()


@pytest.mark.parametrize("json_wanted", [False, True])
def test_ctrl_c_ends_with_130(fake: FakeCoordinator, json_wanted: bool) -> None:
    asked = threading.Event()
    done = threading.Event()

    def slow(_: object) -> dict[str, object]:
        asked.set()
        done.wait(60)
        return {"jobs": []}

    fake.answers["GET /jobs"] = slow
    running = process("jobs", "list", "--url", fake.url, *(["--json"] if json_wanted else []))
    assert asked.wait(60)
    running.send_signal(signal.SIGINT)
    output, said = running.communicate(timeout=60)
    done.set()
    assert running.returncode == 130
    assert "Traceback" not in said
    if json_wanted:
        assert json.loads(output)["error"]["code"] == "interrupted"
    else:
        assert output == ""


def test_ctrl_c_while_watching_leaves_the_job_alone(fake: FakeCoordinator, place: Path) -> None:
    COMMANDS["run"].prepare(fake, place)
    streaming = threading.Event()
    fake.events = []
    fake.answers["GET /jobs/digits"] = lambda asked: streaming.set() or a_job()
    fake.hold = threading.Event()
    fake.events = [[("hello", {})]]
    running = process("run", "job.toml", "--url", fake.url)
    assert streaming.wait(60)  # it reads the job when the stream says hello
    running.send_signal(signal.SIGINT)
    output, said = running.communicate(timeout=60)
    fake.hold.set()
    assert running.returncode == 130, said
    assert "shoal jobs stop digits" in output
    assert not [asked for asked in fake.asked if asked.path.endswith("/stop")]


def on_a_terminal(*arguments: str, **environment: str) -> str:
    """Return the bytes sent to a terminal."""
    leader, follower = pty.openpty()
    running = process(*arguments, stdout=follower, stderr=follower, env={"TERM": "xterm-256color", **environment})
    os.close(follower)
    said = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:  # Linux says so when the other end is closed
            break
        if not piece:
            break
        said += piece
    os.close(leader)
    running.wait(60)
    return said.decode()


def test_ctrl_c_on_a_terminal_is_acknowledged(fake: FakeCoordinator) -> None:
    """In a line of its own, so that the prompt does not follow the ^C."""
    done = threading.Event()

    def until_interrupted(_: object) -> dict[str, object]:
        os.kill(running_with(fake.url), signal.SIGINT)
        done.wait(60)
        return {"jobs": []}

    fake.answers["GET /jobs"] = until_interrupted
    said = on_a_terminal("jobs", "list", "--url", fake.url)
    done.set()
    assert said == "\rinterrupted\r\n"


def running_with(argument: str) -> int:
    """The process that was given this argument."""
    found = [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if argument.encode() in path.read_bytes().split(b"\0")
    ]
    (pid,) = found
    return pid


def test_colors_only_on_a_terminal_that_wants_them() -> None:
    assert "\x1b[1m" in on_a_terminal("algorithms")
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]", on_a_terminal("data", NO_COLOR="1"))
    assert "\x1b" not in on_a_terminal("algorithms", TERM="dumb")
    assert "\x1b" not in on_a_terminal("algorithms", "--json")


def test_python_m_shoal_is_shoal() -> None:
    running = process("--version")
    output, _ = running.communicate(timeout=60)
    assert output.startswith("shoal ")


def test_the_codes_are_told() -> None:
    said = (program.__doc__ or "") + (app.info.epilog or "")
    for code in ("0", "1", "2", "3", "4", "130"):
        assert re.search(rf"\b{code}\b", said)
    assert (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8").count("| 130 |") == 1
