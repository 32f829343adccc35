"""A learner for peers that are processes of their own: a small model, and rounds that take a moment."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from shoal.core.algorithm.learner import Trained
from shoal.sim.hosts.toy_models import ToyLearner


class Slow(ToyLearner):
    """`file`: while it is there, and says so, a training dies, raises, waits, or waits with ticks."""

    def __init__(self, number: int, pause_s: float, file: str) -> None:
        super().__init__(number)
        self._pause_s, self._file = pause_s, Path(file)

    def train(self, config: Any, *, progress: Any = lambda fraction: None, **more: Any) -> Trained:
        sys.stdout.write("what a learner prints is nobody's answer\n")
        wish = self._file.read_text() if self._file.is_file() and not config.steps else ""
        if wish == "die":
            os._exit(7)
        if wish == "raise":
            raise ValueError("no such data")
        if wish:
            self._file.with_suffix(".seen").touch()
        while wish and self._file.exists():
            if wish == "progress":
                progress(0.5)
            time.sleep(0.01)
        time.sleep(self._pause_s)
        return super().train(config, progress=progress, **more)


def learner(number: int = 1, pause_s: float = 0.0, file: str = "") -> Slow:
    """Made by `shoal peer run --learner toy.py:learner --option number=2`."""
    return Slow(number, pause_s, file)
