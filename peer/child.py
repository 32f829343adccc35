"""The training process: `python -m peer.child`. It is asked in lines of JSON on its input, and answers in lines.

    {"job": "…/job.toml", "learner": "…", "options": {…}, "bodies": "…", "made": "…"}      first of all
    {"do": "init", "seed": 1}                              {"model": ref, "examples": 359.0}
    {"do": "order", "order": {…}, "memory": ref or null}   {"weight": …, "body": ref, "metrics": {…}, "memory": ref}
                                                           or {"error": {"code", "message", "hint"}}

Models travel as files: what is asked names bodies in the one folder, what is made lies in the other. Whatever the
learner prints goes to the error stream. The process ends when its input does, also in the middle of training, and takes
second place behind all others, so that the peer answers while it trains.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

from shoal import wire
from shoal.core.algorithm import Algorithm, Local
from shoal.core.errors import LearnerFailed, ShoalError
from shoal.core.learner import Budget, Learner
from shoal.core.message import Order, Ref
from shoal.core.piecework import Piecework
from shoal.core.tree import Slots
from shoal.learn.blame import blamed
from shoal.runtime.store import FileBodies
from shoal.spec import load_job

NICE = 5
CPU_SECONDS = "cpu_s"


class Child:
    """The learner, and the two folders."""

    def __init__(self, given: dict[str, Any]) -> None:
        from shoal.learn.loading import load_learner

        self._algorithm: Algorithm = load_job(Path(given["job"])).build_algorithm()
        self._bodies, self._made = FileBodies(Path(given["bodies"])), FileBodies(Path(given["made"]))
        self._learner: Learner = load_learner(
            given["learner"], given["options"], device=given["device"], precision=given["precision"]
        )

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Do what is asked. Raises `ShoalError`."""
        if asked["do"] == "init":
            return self._init(int(asked["seed"]))
        order = wire.from_json(asked["order"])
        assert isinstance(order, Order)
        return self._order(order, _ref(asked["memory"]))

    def _init(self, seed: int) -> dict[str, Any]:
        """The initial model, and for how many examples this node speaks: found out by a step that is thrown away."""
        learner = self._learner
        with blamed("the learner's init"):
            model = learner.init(seed)
            learner.load(model)
            examples = learner.train(Budget(steps=1, batch_size=1, lr=0.0, seed=seed)).weight
        return {"model": _told(self._made.put({"model": model})), "examples": float(examples)}

    def _order(self, order: Order, memory: Ref | None) -> dict[str, Any]:
        work = Piecework(self._algorithm, self._learner, self._opened(order.body), memory=self._opened(memory))
        with blamed(f"the learner's {order.kind}"):
            made = work.piece(order)
        if not isinstance(made, Local):
            raise LearnerFailed(f"{self._algorithm.name} goes on without an end, which gossip cannot use")
        wire.measure(made.slots)
        return {
            "weight": float(made.weight),
            "body": _told(self._made.put(made.slots)) if made.slots else None,
            "metrics": {str(name): wire.plain(float(value)) for name, value in made.metrics.items()},
            "memory": _told(self._made.put(made.memory)) if made.memory is not None else None,
        }

    def _opened(self, ref: Ref | None) -> Slots:
        return self._bodies.get(ref) if ref is not None else {}


def _ref(values: Any) -> Ref | None:
    return Ref(values[0], values[1]) if values else None


def _told(ref: Ref) -> list[Any]:
    return [ref.digest, ref.nbytes]


def error_of(error: BaseException) -> dict[str, Any]:
    """What went wrong, as it is answered."""
    if isinstance(error, ShoalError):
        return {"code": error.code, "message": error.message, "hint": error.hint}
    return {"code": "learner.failed", "message": f"{type(error).__name__}: {error}"[:400], "hint": ""}


def serve(lines: SimpleQueue[str], out: IO[str]) -> None:
    """Answer one line after the other."""
    child: Child | None = None
    while True:
        asked = json.loads(lines.get())
        try:
            if child is None:
                child = Child(asked)
                said: dict[str, Any] = {"ready": True}
            else:
                said = child.answer(asked)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code: told, and the process lives on
            said = {"error": error_of(error)}
        out.write(json.dumps(said) + "\n")
        out.flush()


def main() -> None:
    """The process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C at the terminal is for the peer
    with suppress(OSError):  # some systems have no such thing
        os.nice(NICE)
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    lines: SimpleQueue[str] = SimpleQueue()

    def listen() -> None:
        for line in sys.stdin:
            lines.put(line)
        os._exit(0)  # the peer is gone

    threading.Thread(target=listen, daemon=True).start()
    serve(lines, out)


if __name__ == "__main__":
    main()
