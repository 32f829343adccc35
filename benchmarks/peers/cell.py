"""One cell of the comparison: a framework's processes, the marks of its rounds, and their cost.

The programs `with_*.py` share it. They run in their framework's own environment, so it needs numpy and psutil only.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import psutil

TAG, ROLE, MARKS = "PEERS_CELL", "PEERS_ROLE", "PEERS_MARKS"
SERVER, CLIENT = "server", "client"
LAYERS = 10
LOOK_S, MEMORY_S = 0.02, 0.25


@dataclass(frozen=True)
class Cell:
    """The work of one run: rounds to measure, and the seconds after which those that are done suffice."""

    nodes: int
    megabytes: float
    rounds: int
    seconds: float
    folder: Path

    @property
    def rounds_to_run(self) -> int:
        """Return the rounds to ask for: one that is not counted, and one whose beginning ends the last."""
        return self.rounds + 2

    @property
    def numbers(self) -> int:
        """Return the float32 numbers in a layer."""
        return max(1, int(self.megabytes * 1e6) // 4 // LAYERS)


def read_cell() -> Cell:
    """Read the command line that `run.py` gives, and prepare this process for its children."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--megabytes", type=float, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    cell = Cell(**vars(parser.parse_args()))
    os.environ.setdefault(TAG, str(os.getpid()))
    os.environ[MARKS] = str(cell.folder / "marks")
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))
    return cell


def layers(cell: Cell) -> list[np.ndarray]:
    """Return the initial model: ten layers of float32 noise."""
    draw = np.random.default_rng(0)
    return [draw.standard_normal(cell.numbers, np.float32) for _ in range(LAYERS)]


def mark() -> None:
    """Note that a round begins. One process does so: the server, or the first client when it is given the model."""
    with open(os.environ[MARKS], "a", encoding="ascii") as file:  # noqa: PTH123 - in the path of what is measured
        file.write(f"{time.monotonic()}\n")


def start(cell: Cell, role: str, name: str, command: list[str], **environment: str) -> subprocess.Popen[bytes]:
    """Start one process of the framework, its output in a log."""
    with (cell.folder / f"{name}.log").open("wb") as log:
        given = {**os.environ, **environment, ROLE: role}
        return subprocess.Popen(command, cwd=cell.folder, env=given, stdout=log, stderr=subprocess.STDOUT)


def role_by_environment(process: psutil.Process) -> str:
    """Return the role that the process, or the one that started it, was given."""
    return process.environ().get(ROLE, "")


def processes(tag: str) -> list[psutil.Process]:
    """Return the processes of a cell, wherever they were moved to in the tree of processes, but not this one."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(TAG) == tag:
                found.append(process)
        except psutil.Error:  # it has ended, or is another user's
            continue
    return found


class Meter:
    """Processor seconds and peak memory of a cell's processes, by role."""

    def __init__(self, role_of: Callable[[psutil.Process], str]) -> None:
        self._role_of = role_of
        self.peak_bytes = 0

    def cpu_s(self) -> dict[str, float]:
        """Return the processor seconds so far, of ended children too."""
        total = {SERVER: 0.0, CLIENT: 0.0}
        for process, role in self._running():
            if role in total:
                with suppress(psutil.Error, OSError):  # it has ended
                    total[role] += time.clock_gettime((~process.pid << 3) | 2)  # its clock: clock_getcpuclockid(3)
                    total[role] += sum(process.cpu_times()[2:4])  # its ended children's
        return total

    def look_at_memory(self) -> None:
        """Keep the greatest resident memory of the server's processes; shared pages count in each of them."""
        now = 0
        for process, role in self._running():
            if role == SERVER:
                with suppress(psutil.Error):
                    now += process.memory_info().rss
        self.peak_bytes = max(self.peak_bytes, now)

    def _running(self) -> list[tuple[psutil.Process, str]]:
        found = []
        for process in processes(os.environ[TAG]):
            try:
                found.append((process, self._role_of(process)))
            except psutil.Error:  # it has ended
                continue
        return found


def end(tag: str) -> None:
    """Kill what is left of a cell: some frameworks' processes outlive the one that started them."""
    for process in processes(tag):
        with suppress(psutil.Error):
            process.kill()


def watch(
    cell: Cell,
    started: list[subprocess.Popen[bytes]],
    role_of: Callable[[psutil.Process], str] = role_by_environment,
) -> None:
    """Wait until the rounds are done, or the time is up and one is; print what a round took; end all processes."""
    try:
        print(json.dumps(_measured(cell, started, role_of)))
    finally:
        end(os.environ[TAG])


def _measured(
    cell: Cell, started: list[subprocess.Popen[bytes]], role_of: Callable[[psutil.Process], str]
) -> dict[str, float]:
    marks = Path(os.environ[MARKS])
    meter, began, looked = Meter(role_of), 0.0, 0.0
    first: tuple[int, dict[str, float]] | None = None
    while True:
        done = len(marks.read_text().splitlines()) if marks.exists() else 0
        if first is None and done >= 2:
            first, began = (done, meter.cpu_s()), time.monotonic()
        late = first is not None and time.monotonic() > began + cell.seconds
        if first is not None and done > first[0] and (done >= cell.rounds_to_run or late):
            break
        if any(process.poll() not in (None, 0) for process in started):
            raise RuntimeError(f"a process has ended\n{logs(cell)}")
        if time.monotonic() > looked + MEMORY_S:
            meter.look_at_memory()
            looked = time.monotonic()
        time.sleep(LOOK_S)
    last, rounds = meter.cpu_s(), done - first[0]
    seconds = [later - earlier for earlier, later in pairwise(map(float, marks.read_text().splitlines()[1:]))]
    return {
        "rounds": len(seconds),
        "round_s": statistics.median(seconds),
        "server_s": (last[SERVER] - first[1][SERVER]) / rounds,
        "client_s": (last[CLIENT] - first[1][CLIENT]) / rounds / cell.nodes,
        "server_mb": meter.peak_bytes / 1e6,
    }


def logs(cell: Cell) -> str:
    """Return the ends of the logs."""
    return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-1500:]}" for log in cell.folder.glob("*.log"))
