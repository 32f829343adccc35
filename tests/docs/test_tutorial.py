"""The tutorial is run command by command, as it stands: each machine is a folder of its own.

A comment before a block says where it runs:

    <!-- file: NAME -->                      the block is that file, on every machine
    <!-- run: MACHINE -->                    its lines are commands, each of which must end with 0
    <!-- run: MACHINE, stays, until: TEXT --> a command that goes on; the next waits until it has printed TEXT
    <!-- run: MACHINE, until: TEXT -->       a command that is repeated until it says TEXT
    <!-- run: laptop, token -->              it prints tokens, which stand for `sht_…` from then on
    <!-- run: docker -->                     checked against docker-compose.yml, not run
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from tests.conventions.sources import ROOT
from tests.support.ports import free_port
from tests.support.waiting import until

TEXT = (ROOT / "docs" / "tutorials" / "two-machines.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"<!-- (run|file|python): ([^>]*?) -->\n```\w+\n(.*?)```", re.DOTALL)
PATIENCE_S = 120.0
LOOK_S = 0.5


@dataclass(frozen=True)
class Block:
    """A block of the tutorial, with what the comment before it says."""

    kind: str
    place: str
    flags: tuple[str, ...]
    until: str
    lines: str


def blocks() -> list[Block]:
    """All that have a comment, in order."""
    found = []
    for kind, said, lines in BLOCK.findall(TEXT):
        place, *flags = [word.strip() for word in said.split(", ")]
        until = next((flag.removeprefix("until: ") for flag in flags if flag.startswith("until: ")), "")
        found.append(Block(kind, place, tuple(flags), until, lines))
    return found


def test_every_block_is_run_or_checked() -> None:
    assert len(re.findall(r"^```\w", TEXT, re.MULTILINE)) == len(blocks()) > 15


def test_dockers_commands_name_services_that_are_there() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    commands = [line for block in blocks() if block.place == "docker" for line in block.lines.splitlines()]
    for words in map(shlex.split, commands):
        compose_words = words[words.index("docker") :]
        assert compose_words[:2] == ["docker", "compose"]
        if compose_words[2] in ("exec", "kill", "start"):
            assert compose_words[3] in compose["services"]
        for variable in (word.partition("=")[0] for word in words[: words.index("docker")]):
            assert variable in (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    assert (ROOT / "examples" / "digits.toml").is_file()


@dataclass
class Machines:
    """The tutorial's machines: folders of this one, with ports of their own."""

    folder: Path
    port: int = field(default_factory=free_port)
    peers: tuple[int, int] = field(default_factory=lambda: (free_port(), free_port()))
    tokens: list[str] = field(default_factory=list)
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def place(self, name: str) -> Path:
        """The laptop is the coordinator's machine: another terminal in the same folder."""
        found = self.folder / ("laptop" if name == "coordinator" else name)
        found.mkdir(exist_ok=True)
        return found

    def adapted(self, command: str) -> str:
        """The command for this one machine: its ports, loopback, and the tokens that were printed."""
        command = command.replace("COORDINATOR:8080", f"127.0.0.1:{self.port}").replace("0.0.0.0", "127.0.0.1")
        command = command.replace("9001", str(self.peers[0])).replace("9002", str(self.peers[1]))
        command = command.replace(
            "pkill -9 -f 'shoal coordinator'", f"kill -9 {self.running[0].pid}" if self.running else ""
        )
        if "sht_…" in command:
            command = command.replace("sht_…", self.tokens.pop(0))
        return command

    def environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        found = {**os.environ, "PATH": path, "HOME": str(self.folder), "SHOAL_EDGE__STATE_DIR": "state"}
        found["SHOAL_COORDINATOR__PORT"] = str(self.port)
        if self.running:  # by itself a command asks port 8080 of this machine
            found["SHOAL_CLIENT__URL"] = f"http://127.0.0.1:{self.port}"
        return found

    def run(self, block: Block) -> str:
        """Run its commands in one shell, as they would be pasted; return their output."""
        place, env = self.place(block.place), self.environment()
        commands = "\n".join(map(self.adapted, block.lines.strip().splitlines()))
        if (place / "shoal-data/operator.token").exists():  # exported once, and each block has a shell of its own
            env["SHOAL_CLIENT__TOKEN_FILE"] = "./shoal-data/operator.token"
        command = ["bash", "-e", "-c", commands]
        done = subprocess.run(
            command, cwd=place, env=env, capture_output=True, text=True, check=False, timeout=PATIENCE_S
        )
        said = done.stdout + done.stderr
        if not block.until:
            assert done.returncode == 0, f"{commands}\n{said}"
        return said

    def stay(self, block: Block) -> None:
        """Start its command, which goes on."""
        command = f"exec {self.adapted(block.lines.strip())}"
        place = self.place(block.place)
        log = place / f"{block.place}-{len(self.running)}.log"
        with log.open("wb") as file:
            started = subprocess.Popen(
                ["bash", "-c", command],
                cwd=place,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        if block.place == "coordinator":
            self.running.insert(0, started)
        else:
            self.running.append(started)
        if block.until:
            wait(block, lambda: log.read_text(encoding="utf-8"))


def wait(block: Block, said: Callable[[], str]) -> None:
    """Until what is said has the block's text. `said`: called again and again."""
    until(f"{block.lines} to say {block.until!r}", lambda: block.until in said(), PATIENCE_S, every_s=LOOK_S)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    made = Machines(tmp_path)
    yield made
    for process in made.running:
        process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.mark.timeout(600)
def test_the_tutorial_works_as_it_is_written(machines: Machines) -> None:
    files = [block for block in blocks() if block.kind == "file"]
    for place in ("laptop", "clinic-a", "clinic-b"):
        for block in files:
            (machines.place(place) / block.place).write_text(block.lines, encoding="utf-8")
    for block in blocks():
        follow(machines, block)


def follow(machines: Machines, block: Block) -> None:
    """Do what a block says."""
    if block.kind == "python":
        (machines.place(block.place) / "use.py").write_text(block.lines, encoding="utf-8")
        machines.run(Block("run", block.place, (), "", f"{shlex.quote(sys.executable)} use.py"))
    elif block.kind == "file" or block.place in ("docker", "nowhere"):
        return
    elif "stays" in block.flags:
        machines.stay(block)
    elif block.until:
        wait(block, lambda: machines.run(block))
    else:
        said = machines.run(block)
        if "token" in block.flags:
            machines.tokens += list(dict.fromkeys(re.findall(r"sht_[A-Za-z0-9_-]{20,}", said)))
            assert len(machines.tokens) == 2, said
