"""A folder of its own for each test, and the command line in this process or in one of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from shoal.cli.app import app
from shoal.client import api
from shoal.runtime.http.retry import Backoff
from tests.conventions.sources import ROOT
from tests.support.fake_coordinator import FakeCoordinator

Shoal = Callable[..., Result]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to be in, which also is the home of all settings."""
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    for name in ("SHOAL_DATA__CACHE", "OMP_NUM_THREADS"):  # commands set these; the values are forgotten
        monkeypatch.setenv(name, "1")
    monkeypatch.delenv("SHOAL_DATA__CACHE")
    for name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)
    # A log that is set up while stderr is a test's would write into a closed file afterwards.
    monkeypatch.setattr("shoal.runtime.observability.logs.configure", lambda *_, **__: None)
    return tmp_path


@pytest.fixture
def shoal() -> Shoal:
    """Run a command in this process."""

    def run(*arguments: object, env: dict[str, str] | None = None, stdin: str | None = None) -> Result:
        return CliRunner(env=env).invoke(app, [str(argument) for argument in arguments], input=stdin)

    return run


@pytest.fixture
def fake() -> Iterator[FakeCoordinator]:
    """A server that answers as it is told."""
    with FakeCoordinator() as server:
        yield server


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Don't wait for reconnections."""
    monkeypatch.setattr(api, "TICK_S", 0.02)
    monkeypatch.setattr(api, "RECONNECT", Backoff(0.01, 0.02, 2.0))


def envelope(result: Result) -> dict[str, Any]:
    """The one envelope on stdout, its form checked."""
    lines = result.stdout.splitlines()
    assert len(lines) == 1, result.stdout + result.stderr
    found: dict[str, Any] = json.loads(lines[0], parse_constant=lambda text: pytest.fail(f"{text} in JSON"))
    assert found["schema_version"] == 1
    if found["status"] == "ok":
        assert found.keys() == {"schema_version", "status", "data"}
        assert isinstance(found["data"], dict)
    else:
        assert found["status"] == "error"
        assert found.keys() == {"schema_version", "status", "error"}
        assert found["error"].keys() == {"code", "message", "hint"}
        assert found["error"]["code"]
        assert found["error"]["message"]
        assert result.exit_code != 0
    return found


def process(*arguments: object, **given: Any) -> subprocess.Popen[str]:
    """A command in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **given.pop("env", {})}
    command = [sys.executable, "-m", "shoal", *map(str, arguments)]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=environment, text=True, **{**pipes, **given})
