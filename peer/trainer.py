"""What the peer asks of its training process: started when it is needed, started again when it has died."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from shoal import wire
from shoal.core.errors import InvalidJob, LearnerFailed, ShoalError
from shoal.core.machine import Result, Work
from shoal.core.message import Metrics, Order, Ref

LINE_BYTES_MAX = 1 << 20
DYING_S = 5.0
"""A process that has closed its output may take so long to end."""


@dataclass(frozen=True)
class Task:
    """What the process is told first: which job, whose learner, and where bodies are."""

    job: Path
    learner: str
    bodies: Path
    made: Path
    options: Mapping[str, Any] = field(default_factory=dict)
    device: str = ""
    precision: str = ""
    threads: int = 0

    def said(self) -> dict[str, Any]:
        """As the process reads it."""
        paths = {"job": str(self.job), "bodies": str(self.bodies), "made": str(self.made)}
        wishes = {"device": self.device, "precision": self.precision}
        return {**paths, **wishes, "learner": self.learner, "options": dict(self.options)}

    def environment(self) -> dict[str, str]:
        """What the process finds around it."""
        found = {**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
        return {**found, "OMP_NUM_THREADS": str(self.threads)} if self.threads else found


class Trainer:
    """One child process, one question at a time."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._process: asyncio.subprocess.Process | None = None
        self._ending: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self.starts = 0
        self.log: Any = structlog.get_logger("peer.trainer")

    @property
    def pid(self) -> int | None:
        """The process, if there is one."""
        return self._process.pid if self._process is not None else None

    async def init(self, seed: int) -> tuple[Ref, float]:
        """(the initial model, in the folder of what was made; how many examples this node speaks for)."""
        found = await self._ask({"do": "init", "seed": seed})
        return _ref(found["model"]), float(found["examples"])

    async def perform(self, work: Work) -> Result:
        """Do an order. Raises `LearnerFailed` when the process dies of it, and whatever the learner's failure is."""
        memory = [work.memory.digest, work.memory.nbytes] if work.memory is not None else None
        found = await self._ask({"do": "order", "order": wire.to_json(work.order), "memory": memory})
        body, after = (_ref(found[name]) if found[name] else None for name in ("body", "memory"))
        return Result(float(found["weight"]), body, _metrics(found["metrics"]), after)

    async def evaluate(self, model: Ref) -> Metrics:
        """What the learner's own test data say about a model."""
        found = await self.perform(Work(Order((0, 0), "self", "evaluate", 0, 0, model)))
        return found.metrics

    async def _ask(self, what: dict[str, Any]) -> dict[str, Any]:
        async with self._turn:
            try:
                if self._process is None or self._process.returncode is not None:
                    await self.end()
                    await self._start()
                return await self._said(what)
            except asyncio.CancelledError:
                self.close()  # it is in the middle of something that nobody wants any more
                raise

    async def _start(self) -> None:
        self.starts += 1
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "peer.child",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=self._task.environment(),
            limit=LINE_BYTES_MAX,
        )
        self.log.debug("training process", pid=self._process.pid)
        try:
            await self._said(self._task.said())
        except ShoalError:
            self.close()  # without a learner it is of no use
            raise

    async def _said(self, what: dict[str, Any]) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(what).encode() + b"\n")
            await process.stdin.drain()
            line = await process.stdout.readline()
        except (ConnectionError, ValueError) as error:
            line, why = b"", str(error)
        else:
            why = ""
        if not line:
            code = await self._died(process)
            raise LearnerFailed(
                f"the training process has ended with {code} {why}".rstrip(),
                code="learner.died",
                hint="out of memory? its last words are on the error stream; a new one is started",
            )
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            said = found["error"]
            kind = InvalidJob if said["code"].startswith(("learner.missing", "learner.options")) else LearnerFailed
            raise kind(said["message"], code=said["code"], hint=said["hint"])
        return found

    async def _died(self, process: asyncio.subprocess.Process) -> int:
        """Wait for the end of a process that says nothing any more; its exit code.

        It is killed only if it goes on: a signal to one that has just ended takes its exit code from who waits for it.
        """
        self._process, self._ending = None, process
        try:
            async with asyncio.timeout(DYING_S):
                return await _gone(process)
        except TimeoutError:
            process.kill()
            return await _gone(process)

    def close(self) -> None:
        """End the process, whatever it does."""
        process, self._process = self._process, None
        if process is not None:
            self._ending = process
            if process.returncode is None:
                process.kill()

    async def end(self) -> None:
        """The same, and wait until nothing of it is left."""
        self.close()
        process, self._ending = self._ending, None
        if process is not None:
            await _gone(process)


async def _gone(process: asyncio.subprocess.Process) -> int:
    """Wait for the end of a process and of its pipes; its exit code."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    await process.stdout.read()  # a line at most: it is answered one line at a time
    code = await process.wait()
    await asyncio.sleep(0)  # its pipes are let go of in the next turn of the loop
    return code


def _ref(values: Any) -> Ref:
    return Ref(str(values[0]), int(values[1]))


def _metrics(values: Mapping[str, Any]) -> Metrics:
    return {str(name): float(value) for name, value in values.items()}
