"""Where the learner works: in this process's training thread, or in a process of its own.

A thread costs nothing, and takes objects as learners. A process leaves this one free to answer others while it trains,
and may die without it. What comes out is the same, bit for bit.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from shoal.core.algorithm import Algorithm, Local
from shoal.core.capability import check_learner
from shoal.core.errors import InvalidJob
from shoal.core.filter import Filter
from shoal.core.learner import Learner, no_tick
from shoal.core.message import Metrics, Order, Status
from shoal.core.piecework import Piecework
from shoal.core.tree import Slots, Tree
from shoal.learn.blame import blamed
from shoal.learn.looks import looks_of
from shoal.learn.weighing import weigh
from shoal.runtime.store import FileBody
from shoal.runtime.threads import Lane
from shoal.runtime.training.process import Setup, Training
from shoal.runtime.training.remote import Given, Made, Remote
from shoal.spec import JobSpec
from shoal_edge_client.settings import EdgeSettings

UNCALLED = ("", "none")
"""Settings of `peer_listen` with which nobody waits for an answer of this node."""


class Work(Protocol):
    """An order in hand, see `shoal.core.piecework`. `base`: after the first piece, what the node holds from now on."""

    @property
    def begun(self) -> bool: ...

    @property
    def base(self) -> Slots | FileBody: ...

    def may_go_on(self, order: Order) -> bool: ...

    def piece(self, order: Order) -> Local | Made | Status | None: ...


Begin = Callable[[Given], Work]
"""Takes an order of one job in hand."""


Judge = Callable[[Tree], Awaitable[Metrics]]
"""What this node's own held-out data say about a model. Raises `ShoalError`."""


class Workshop(Protocol):
    """Every method but `close` and `judge` blocks, is called in the training thread, and raises `ShoalError`."""

    @property
    def device(self) -> str:
        """What the learner computes on, once it is there; "" where it does not say."""
        ...

    @property
    def looks(self) -> dict[str, Any]:
        """What the learner's model looks like, once it is there (`shoal.learn.looks`); {} where it does not say."""
        ...

    def open(self) -> None:
        """Load the learner."""
        ...

    def job(self, spec: JobSpec) -> Begin:
        """Return what takes the orders of that job in hand. May be called in any thread.

        Raises `InvalidJob` where it is known already that the learner cannot do them.
        """
        ...

    def weigh(self, seed: int) -> float:
        """For how many examples the learner speaks."""
        ...

    def judge(self, spec: JobSpec, lane: Lane) -> Judge:
        """Who measures models of others in that job, called in the event loop. `lane`: that of all orders."""
        ...

    def close(self) -> None:
        """Nothing is worked on any more. May be called in any thread."""
        ...


def workshop(settings: EdgeSettings, learner: Learner | None, folder: Path) -> Workshop:
    """The one that the settings want. `folder`: for bodies on their way. Raises `InvalidJob`."""
    if learner is None and not settings.learner:
        raise InvalidJob("no learner", code="learner.missing", hint="name one: file.py:name or package.module:name")
    apart = settings.train_in == "process"
    if apart and learner is not None:
        hint = 'name it, "file.py:name" or "package.module:name", or leave train_in out'
        raise InvalidJob("an object cannot go into another process", code="learner.options", hint=hint)
    if apart or (settings.train_in == "auto" and learner is None and settings.peer_listen not in UNCALLED):
        return Apart(settings, folder)
    return Here(settings, learner)


class Here:
    """In this process."""

    def __init__(self, settings: EdgeSettings, learner: Learner | None) -> None:
        self._settings, self._given = settings, learner
        self._learner: Learner | None = None
        self.device = ""
        self.looks: dict[str, Any] = {}

    def open(self) -> None:
        from shoal.learn.loading import directed, load_learner

        settings, wishes = self._settings, {"device": self._settings.device, "precision": self._settings.precision}
        if self._given is not None:
            self._learner = directed(self._given, **wishes)
        else:
            self._learner = load_learner(settings.learner, settings.options, **wishes)
        torch = sys.modules.get("torch")
        if settings.threads and torch is not None:
            torch.set_num_threads(settings.threads)
        self.device = str(getattr(self._learner, "device", ""))
        self.looks = looks_of(self._learner)

    def job(self, spec: JobSpec) -> Begin:
        assert self._learner is not None
        algorithm = spec.build_algorithm()
        check_learner(algorithm, self._learner)
        return partial(at_hand, algorithm, self._learner, tuple(spec.build_filters()))

    def weigh(self, seed: int) -> float:
        assert self._learner is not None
        return weigh(self._learner, seed)

    def judge(self, spec: JobSpec, lane: Lane) -> Judge:
        """Between two pieces of work: there is one learner."""
        assert self._learner is not None
        algorithm, learner = spec.build_algorithm(), self._learner

        def measured(model: Tree) -> Metrics:
            with blamed("the learner's evaluate"):
                return _metrics(Piecework(algorithm, learner, {"model": model}).piece(JUDGING))

        async def judge(model: Tree) -> Metrics:
            return await lane.run(partial(measured, model))

        return judge

    def close(self) -> None:
        """A call that is being made is waited for by whoever has the thread."""


def at_hand(algorithm: Algorithm, learner: Learner, filters: tuple[Filter, ...], given: Given) -> Piecework:
    """An order that is done in this thread."""
    return Piecework(algorithm, learner, given.slots, given.base, given.memory, filters, given.tick)


JUDGING = Order((0, 0), "self", "evaluate", 0, 0)


def _metrics(made: Local | Made | Status | None) -> Metrics:
    return {str(name): float(value) for name, value in made.metrics.items()} if isinstance(made, Local | Made) else {}


class Apart:
    """In another process. Models of others are measured in a second one, which begins when there is one to be measured:
    an exchange must not wait for a local round."""

    def __init__(self, settings: EdgeSettings, folder: Path) -> None:
        self.training = Training(self._setup(settings, folder))
        self._judging = Training(self._setup(settings, folder.with_name("judging")))
        self._bench = Lane("shoal-judging")

    @staticmethod
    def _setup(settings: EdgeSettings, folder: Path) -> Setup:
        return Setup(
            settings.learner,
            folder,
            options=settings.options,
            device=settings.device,
            precision=settings.precision,
            threads=settings.threads,
            level=settings.log_level,
        )

    @property
    def device(self) -> str:
        return self.training.device

    @property
    def looks(self) -> dict[str, Any]:
        return self.training.looks

    def open(self) -> None:
        self.training.open()

    def job(self, spec: JobSpec) -> Begin:
        return partial(Remote, self.training, spec.model_dump(mode="json"))

    def weigh(self, seed: int) -> float:
        return float(self.training.ask({"do": "weigh", "seed": seed})["examples"])

    def judge(self, spec: JobSpec, lane: Lane) -> Judge:
        job = spec.model_dump(mode="json")

        def measured(model: Tree) -> Metrics:
            given = Given(JUDGING, {"model": model}, {}, {}, None, self._judging.bodies, no_tick)
            return _metrics(Remote(self._judging, job, given).piece(JUDGING))

        async def judge(model: Tree) -> Metrics:
            return await self._bench.run(partial(measured, model))

        return judge

    def close(self) -> None:
        self.training.close()
        self._judging.close()
        self._bench.close()
