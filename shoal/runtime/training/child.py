"""The training process: `python -m shoal.runtime.training.child`. What is said to it and by it: see `words`.

Whatever the learner prints or logs goes to the error stream, which the node's process reads. The process ends when its
input does, however the node's process has died, in the middle of training as well, and takes the learner's own
processes along. It takes second place behind all others, so that the node answers while it trains.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

from shoal import wire
from shoal.core.algorithm import Algorithm, Local
from shoal.core.capability import check_learner
from shoal.core.errors import Cancelled, LearnerFailed, ShoalError
from shoal.core.filter import Filter
from shoal.core.learner import Learner
from shoal.core.message import Order
from shoal.core.piecework import Piecework
from shoal.core.tree import Slots
from shoal.learn.blame import blamed
from shoal.learn.looks import looks_of
from shoal.learn.weighing import weigh
from shoal.runtime import logs
from shoal.runtime.store import FileBodies, FileSource
from shoal.runtime.training.words import error_said, ref_said
from shoal.spec import parse_job

NICE = 5
TICK_S = 0.2
"""How often it is said, at most, how far the work is."""


class Mouth:
    """What this process says. Any thread may."""

    def __init__(self, out: IO[str]) -> None:
        self._out, self._lock = out, threading.Lock()
        self._ticked = 0.0
        self.asked, self.cancelled = 0, -1
        """The question that is being answered; the last one of which nobody wants the answer any more."""

    def say(self, said: Mapping[str, Any]) -> None:
        """One line."""
        with self._lock:
            self._out.write(json.dumps(said) + "\n")
            self._out.flush()

    def tick(self, fraction: float) -> None:
        """The work's `Tick`."""
        if self.cancelled >= self.asked:
            raise Cancelled("the order was withdrawn")
        now = time.monotonic()
        if now - self._ticked >= TICK_S:
            self._ticked = now
            self.say({"tick": min(max(float(fraction), 0.0), 1.0)})


class Child:
    """The learner, and the orders that are in hand."""

    def __init__(self, given: Mapping[str, Any], mouth: Mouth) -> None:
        from shoal.learn.loading import load_learner

        self._tick, self._made = mouth.tick, FileBodies(Path(given["folder"]))
        self._learner: Learner = load_learner(
            given["learner"], given["options"], device=given["device"], precision=given["precision"]
        )
        torch = sys.modules.get("torch")
        if given["threads"] and torch is not None:
            torch.set_num_threads(given["threads"])
        self._plans: dict[str, tuple[Algorithm, tuple[Filter, ...]]] = {}
        self._hands: dict[int, Piecework] = {}

    def about(self) -> dict[str, Any]:
        """What is said when the learner is there."""
        return {"ready": True, "device": str(getattr(self._learner, "device", "")), "looks": looks_of(self._learner)}

    def answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Do what is asked. Raises `ShoalError`."""
        match asked["do"]:
            case "init":
                return self._init(int(asked["seed"]))
            case "weigh":
                return {"examples": weigh(self._learner, int(asked["seed"]))}
            case "fit":
                check_learner(self._plan(asked["job"])[0], self._learner)
                return {"fits": True}
            case "begin":
                self._begin(asked)
                return {"begun": True}
            case "piece":
                return self._piece(int(asked["hand"]), wire.from_json(asked["order"]))
        raise AssertionError(asked["do"])

    def drop(self, hands: list[int]) -> None:
        """Nobody will ask for more of these."""
        for hand in hands:
            self._hands.pop(hand, None)

    def _init(self, seed: int) -> dict[str, Any]:
        """The initial model, and for how many examples this node speaks."""
        with blamed("the learner's init"):
            model = self._learner.init(seed)
        return {"model": ref_said(self._made.put({"model": model})), "examples": weigh(self._learner, seed)}

    def _begin(self, asked: Mapping[str, Any]) -> None:
        algorithm, filters = self._plan(asked["job"])
        slots, base, memory = (_opened(asked[name]) for name in ("slots", "base", "memory"))
        self._hands[asked["hand"]] = Piecework(algorithm, self._learner, slots, base, memory, filters, self._tick)

    def _plan(self, job: dict[str, Any]) -> tuple[Algorithm, tuple[Filter, ...]]:
        key = json.dumps(job, sort_keys=True)
        if key not in self._plans:
            spec = parse_job(job)
            self._plans = {key: (spec.build_algorithm(), tuple(spec.build_filters()))}
        return self._plans[key]

    def _piece(self, hand: int, order: Order) -> dict[str, Any]:
        work = self._hands[hand]
        first = not work.begun
        held = work.base
        with blamed(f"the learner's {order.kind}"):
            made = work.piece(order)
        base = self._made.put(work.base) if first and work.base is not held else None
        said: dict[str, Any] = {"check": work.check, "base": ref_said(base)}
        if not isinstance(made, Local):
            return {**said, "status": wire.to_json(made) if made is not None else None}
        wire.measure(made.slots)
        return {
            **said,
            "local": {
                "weight": float(made.weight),
                "body": ref_said(self._made.put(made.slots)) if made.slots else None,
                "metrics": {str(name): float(value) for name, value in made.metrics.items()},
                "memory": ref_said(self._made.put(made.memory)) if made.memory is not None else None,
            },
        }


def _opened(path: str) -> Slots:
    return wire.open_payload(FileSource(Path(path))) if path else {}


def serve(lines: SimpleQueue[dict[str, Any]], mouth: Mouth) -> None:
    """Answer one line after the other."""
    child: Child | None = None
    while True:
        asked = lines.get()
        if child is not None and "drop" in asked:
            child.drop(asked["drop"])
            continue
        try:
            if child is None:
                child = Child(asked, mouth)
                said = child.about()
            else:
                mouth.asked = int(asked["n"])
                said = child.answer(asked)
        except SystemExit as error:
            failed = LearnerFailed(f"the learner called sys.exit({error.code!r})")
            failed.__cause__ = error
            said = {"error": error_said(failed, _whole(failed))}
        except Exception as error:  # noqa: BLE001 - the user's code: told, and the process lives on
            of_interest = not isinstance(error, ShoalError) or isinstance(error, LearnerFailed) or error.__cause__
            said = {"error": error_said(error, _whole(error) if of_interest else "")}
        mouth.say(said)


def _whole(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def main() -> None:
    """The process."""
    for number in (signal.SIGINT, signal.SIGTERM):  # they are for the node, which says when this one is to end
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError, AttributeError):  # some systems have no such thing
        os.nice(NICE)
    faulthandler.enable()
    mine, out = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    mouth, lines = Mouth(out), SimpleQueue[dict[str, Any]]()
    first = json.loads(mine.readline() or "null")
    if first is None:
        return
    logs.configure("training", level=first["level"], form="json")
    lines.put(first)

    def listen() -> None:
        for line in mine:
            asked = json.loads(line)
            if "cancel" in asked:
                mouth.cancelled = asked["cancel"]
            else:
                lines.put(asked)
        _end()

    threading.Thread(target=listen, daemon=True).start()
    serve(lines, mouth)


def _end() -> None:
    """The node's process is gone: end at once, with all processes that the learner has begun."""
    if sys.platform != "win32" and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    main()
