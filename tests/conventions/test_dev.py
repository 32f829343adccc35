"""dev.py is the first thing a stranger runs: what it says when something is wrong must be right."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import dev
from tests.conventions.sources import ROOT, plant

SAYS = [sys.executable, "-c", "print('what it said')"]
FAILS = [sys.executable, "-c", "print('what went wrong'); raise SystemExit(3)"]


def make(*targets: str) -> str:
    """The commands that make would run."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    command = ["make", "--dry-run", "--always-make", *targets, "PYTHON=python3"]
    # The suite itself may run under make, which hands its own flags on to any make below it.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout


def test_every_command_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        dev.main(["--help"])
    assert end.value.code == 0
    said = capsys.readouterr().out
    assert {line.split()[0] for line in said.splitlines() if line.startswith("  ")} >= set(dev.COMMANDS)


def test_unknown_commands_are_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        dev.main(["swim"])
    assert end.value.code == 2
    assert "'swim'" in capsys.readouterr().err


@pytest.mark.parametrize("target", ["demo", "test", "test-all", "test-nightly", "check", "bench", "clean"])
def test_make_hands_its_arguments_on(target: str) -> None:
    expected = f"python3 dev.py {target}" + ("" if target in {"check", "clean"} else " -- -k 'a b'")
    assert make(target, "ARGS=-k 'a b'").strip() == expected


def test_make_alone_explains() -> None:
    assert make().strip() == "python3 dev.py --help"


def test_an_old_python_looks_for_a_newer_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 2))
    monkeypatch.setattr(dev.shutil, "which", {"python3.12": "broken", "python3.11": sys.executable}.get)
    assert dev.newest_python() == sys.executable  # a command that doesn't run is passed over


def test_an_old_python_alone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 2))
    monkeypatch.setattr(dev.shutil, "which", lambda name: None)
    with pytest.raises(SystemExit, match=r"needs Python 3\.11 or newer; this is 3\.9") as end:
        dev.newest_python()
    assert "python3.12 dev.py" in str(end.value)


def test_a_long_command_is_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    dev.quietly("working", SAYS)
    said = capfd.readouterr()
    assert "working … 0 s" in said.out
    assert "what it said" not in said.out + said.err


def test_a_failed_command_says_everything(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="working: failed with exit code 3"):
        dev.quietly("working", FAILS)
    assert "what went wrong" in capfd.readouterr().err


def test_checks_fail_if_one_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert dev.side_by_side([dev.Step("good", SAYS)])
    assert not dev.side_by_side([dev.Step("bad", FAILS), dev.Step("good", SAYS)])
    said = capsys.readouterr().out
    assert "FAILED bad" in said
    assert "what went wrong" in said
    assert "what it said" not in said  # only failures are worth reading


@pytest.fixture
def installs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done to a planted tree whose .venv has a Python."""
    made: list[str] = []
    plant(tmp_path, {"pyproject.toml": "a", ".venv/python": ""})
    for name, value in {"ROOT": tmp_path, "VENV": tmp_path / ".venv", "PYTHON": tmp_path / ".venv" / "python"}.items():
        monkeypatch.setattr(dev, name, value)
    monkeypatch.setattr(dev, "version_of", lambda python: dev.OLDEST)
    monkeypatch.setattr(dev, "quietly", lambda what, command, *_: made.append(command[-1]))
    monkeypatch.setattr(dev, "begin_pages", lambda: made.append("pages"))
    return made


def test_an_installed_tree_is_left_alone(installs: list[str], tmp_path: Path) -> None:
    assert dev.install([]) == dev.install([]) == 0
    assert installs == [dev.BUILDER, ".[dev]"]
    plant(tmp_path, {"pyproject.toml": "b"})
    dev.install([])
    assert installs == [dev.BUILDER, ".[dev]"] * 2


def test_a_demo_installs_what_it_needs_and_no_more(installs: list[str]) -> None:
    """The pages are begun before the installation, which takes longer; what tests need includes what a demo needs."""
    dev.ready("demo")
    assert installs == [dev.BUILDER, "pages", ".[demo]"]
    dev.ready("demo")
    dev.install([])
    assert installs[3:] == ["pages", dev.BUILDER, ".[dev]"]
    dev.stamp("demo").unlink()
    dev.ready("demo")
    assert installs[6:] == ["pages"]


@pytest.mark.parametrize(
    ("version", "steps"),
    [
        ((22, 3), [["venv", "--clear", "--without-pip"], ["pip", "--python"]]),
        ((22, 2), [["venv", "--clear"], ["pip", "install"]]),
        ((0, 0), [["venv", "--clear"], ["pip", "install"]]),
    ],
)
def test_a_pip_that_is_there_installs_the_one_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], steps: list[list[str]]
) -> None:
    made: list[list[str]] = []
    monkeypatch.setattr(dev, "version_of", lambda python: (0, 0))
    monkeypatch.setattr(dev, "newest_python", lambda: "python")
    monkeypatch.setattr(dev, "pip_version", lambda python: version)
    monkeypatch.setattr(dev, "quietly", lambda what, command, *_: made.append(command))
    dev.make_venv()
    assert [command[2 : 2 + len(step)] for command, step in zip(made, steps, strict=True)] == steps
    assert made[1][-2:] == (["pip", dev.BUILDER] if version >= dev.PIP_OLDEST else ["--no-compile", dev.BUILDER])


def test_the_version_of_a_pip_is_found(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'pip 23.2.1 from /somewhere (python 3.11)'\n")
    python.chmod(0o755)
    assert dev.pip_version(str(python)) == (23, 2)
    python.write_text("#!/bin/sh\necho 'No module named pip' >&2; exit 1\n")
    assert dev.pip_version(str(python)) == (0, 0)


def test_tests_install_less_than_all_tests(installs: list[str]) -> None:
    dev.ready("test")
    dev.ready("demo")
    assert installs == [dev.BUILDER, "pages", ".[test]", "pages"]
    dev.ready("dev")
    dev.ready("test", with_pages=False)
    assert installs[4:] == [dev.BUILDER, "pages", ".[dev]"]


def test_what_is_installed_is_what_the_project_declares() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["build-system"]["requires"] == [dev.BUILDER]
    extras = project["project"]["optional-dependencies"]
    assert all(set(wider) <= extras.keys() for wider in dev.WIDER.values())
    assert any(line.startswith("shoal[demo,") for line in extras["test"])
    assert "shoal[test]" in extras["dev"]


def test_clean_removes_what_was_made_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {"shoal/tree.py": "", "dashboard/src/app.ts": "", "data/digits": ""}
    made = (
        ".venv/x",
        "dist/x",
        "dashboard/shoal_dashboard/static/x",
        "dashboard/node_modules/x",
        "shoal/__pycache__/x",
        ".mypy_cache/x",
    )
    plant(tmp_path, kept | dict.fromkeys(made, ""))
    monkeypatch.setattr(dev, "ROOT", tmp_path)
    monkeypatch.setattr(dev, "VENV", tmp_path / ".venv")
    assert dev.clean([]) == 0
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert left == set(kept)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no exec")
def test_a_command_takes_its_place() -> None:
    code = "import dev, sys; dev.become([sys.executable, '-c', 'raise SystemExit(4)'])"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 4


def test_benchmarks_are_listed_and_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(dev, "install", lambda _: 0)
    monkeypatch.setattr(dev, "run", lambda command: ran.append(command[1:]) or 0)
    assert dev.main(["bench"]) == 0
    listed = {line.partition(" ")[0] for line in capsys.readouterr().out.splitlines()}
    assert {"round_overhead", "peers"} <= listed
    assert listed.isdisjoint({"harness", "environments", "with_shoal"})
    assert dev.main(["bench", "--", "peers", "--json", "x"]) == 0
    assert ran == [[str(dev.ROOT / "benchmarks" / "peers" / "run.py"), "--json", "x"]]
    with pytest.raises(SystemExit, match="no benchmark none"):
        dev.main(["bench", "none"])
