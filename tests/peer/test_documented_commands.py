"""The three commands of docs/how-to/peers.md, run as they are written there, by three processes in three folders."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from tests.conventions.sources import ROOT
from tests.support.waiting import until

TEXT = (ROOT / "docs" / "how-to" / "peers.md").read_text(encoding="utf-8").partition("## Prepared folders")[0]
PATIENCE_S = 300.0
STRING = re.compile(r"shoal-join-[A-Za-z0-9_-]+")


def blocks(language: str) -> list[str]:
    """The blocks of code in that language."""
    return re.findall(rf"```{language}\n(.*?)```", TEXT, flags=re.DOTALL)


def begun(command: str, folder: Path) -> subprocess.Popen[bytes]:
    """A process of that command, whose output goes to a file in its folder; on this machine alone."""
    words = [*command.split()[1:], "--listen", "127.0.0.1:0", "-o", "model.safetensors"]
    with (folder / "log.txt").open("wb") as log:
        return subprocess.Popen([sys.executable, "-m", "shoal", *words], cwd=folder, stdout=log, stderr=log)


def commands() -> list[str]:
    """The commands of the three machines."""
    return [line.strip() for block in blocks("sh") for line in block.splitlines() if "shoal peer" in line]


def test_the_documentation_shows_three_commands() -> None:
    assert [" ".join(command.split()[:3]) for command in commands()] == ["shoal peer start"] + 2 * ["shoal peer join"]


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_three_commands_make_one_model(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "123"]
    for folder in folders:
        folder.mkdir()
    (folders[0] / "digits.toml").write_text(blocks("toml")[0])
    start, *joins = commands()
    processes = [begun(start, folders[0])]
    try:
        log = folders[0] / "log.txt"
        until("an invitation", lambda: STRING.search(log.read_text()) or processes[0].poll() is not None)
        found = STRING.search(log.read_text())
        assert found, log.read_text()
        for command, folder in zip(joins, folders[1:], strict=True):
            processes.append(begun(command.replace("shoal-join-…", found[0]), folder))
        for process, folder in zip(processes, folders, strict=True):
            assert process.wait(PATIENCE_S) == 0, (folder / "log.txt").read_text()
    finally:
        for process in processes:
            process.kill()
    models = [load_file(folder / "model.safetensors") for folder in folders]
    for name, first in models[0].items():
        assert all(abs(first - other[name]).max() < 0.05 for other in models[1:])
