"""Learners that several processes make from their numbers, and simulations in several processes."""

import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import shoal
from shoal.sim.tasks.learners import MakeLearner
from tests.algorithms.softmax import Softmax, digits


def in_processes(job: shoal.JobSpec, make: MakeLearner, workers: int, nodes: int = 12) -> shoal.Result:
    """Simulate with the learners of that function."""
    return shoal.simulate(job, make, nodes=nodes, workers=workers)


def softmax(number: int, kind: type[Softmax] = Softmax) -> Softmax:
    x, y = digits()
    return kind(x[number::30], y[number::30], (x[:50], y[:50]))


def stackable(number: int) -> Any:
    return torch_learner(number, "mlp")


def with_buffers(number: int) -> Any:
    return torch_learner(number, "bn")


def torch_learner(number: int, model: str) -> Any:
    from shoal.learn import TorchLearner, models
    from shoal.learn.digits import digits as tensors

    x, y = tensors()
    mine = slice(20 * (number % 60), 20 * (number % 60) + 20)
    return TorchLearner(getattr(models, model), (x[mine], y[mine]), (x[-9:], y[-9:]), device="cpu")


class Broken(Softmax):
    def train(self, *_: Any, **__: Any) -> Any:
        raise ValueError("no such column")


broken = partial(softmax, kind=Broken)


def killed(number: int) -> Softmax:
    if number == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return softmax(number)


class Slow(Softmax):
    def train(self, *_: Any, **__: Any) -> Any:
        Path(os.environ["WORKERS_BEGUN"], str(os.getpid())).touch()
        time.sleep(600)


slow = partial(softmax, kind=Slow)
