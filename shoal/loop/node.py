"""The node of a training loop: runs jobs in a thread, and hands their tasks to the user's thread."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from shoal.core.errors import Cancelled, InvalidJob, LearnerFailed
from shoal.extras import not_installed
from shoal.learn.user_errors import failure_of
from shoal.loop.learner import LoopLearner, LoopStart
from shoal.loop.loop_model import LoopModel
from shoal.loop.rendezvous import LoopCall, Rendezvous
from shoal.loop.task import LoopTask, measured

Evaluate = Callable[[Any], Mapping[str, Any]]
"""Measures the loop's model: "examples", "loss", "accuracy", … on the node's own held-out data."""

MakeLoopLearner = Callable[[str, int], LoopLearner]
"""Returns the learner of a node from its name and number."""

JOIN_S = 0.2
"""Seconds between two chances to be interrupted while the jobs end."""


class LoopNode(ABC):
    """A node whose training is the body of `for task in node.tasks(model)`. Use it in a `with` block, in one thread."""

    def __init__(self) -> None:
        self._calls = Rendezvous()
        self._thread: threading.Thread | None = None
        self._model: tuple[Any, LoopModel, Evaluate | None] | None = None
        self._error: BaseException | None = None
        self._open: Generator[LoopTask] | None = None
        """The tasks in use: a task that is left holds the default generators."""

    @abstractmethod
    def _runner(self, make: MakeLoopLearner) -> Callable[[], object]:
        """Return the function that runs the jobs to their end, in a thread of its own, with these learners."""

    @abstractmethod
    def _leave(self, *, unfinished: bool) -> None:
        """Let the jobs' thread end soon. `unfinished`: a task was given up, and its end need not be waited for."""

    def tasks(
        self, model: Any, *, evaluate: Evaluate | None = None, travels: Any = None, examples: int | None = None
    ) -> Iterator[LoopTask]:
        """Yield tasks until the jobs have ended. Each is loaded into the model, and reported by `task.report`.

        `model`: a torch module, or a mapping of names to numpy arrays. `evaluate`: measures the model, which then has
        the weights of a version. `travels`: as in `TorchConfig`. `examples`: the number of this node's examples, which
        nodes among peers need. A second call goes on as the first one began. Raises `ShoalError` where the jobs or the
        node cannot go on.
        """
        if self._model is None:
            form = loop_model(model, travels)
            self._model = (model, form, evaluate)
            make = self._maker(form, examples, evaluates=evaluate is not None)
            self._thread = threading.Thread(
                target=self._work, args=(self._runner(make),), name="shoal-node", daemon=True
            )
            self._thread.start()
        elif self._model[0] is not model:
            raise InvalidJob("this node trains another model already", code="learner.model", hint="make another node")
        self._close_tasks()
        self._open = self._tasks(*self._model[1:])
        return self._open

    def _maker(self, form: LoopModel, examples: int | None, *, evaluates: bool) -> MakeLoopLearner:
        start = LoopStart(form.initial(), form.local(), examples, form.device, evaluates)
        return lambda node, index: LoopLearner(self._calls, start, node, index)

    def _work(self, run: Callable[[], object]) -> None:
        """Run the jobs; the body of the thread."""
        try:
            run()
        except BaseException as error:  # noqa: BLE001 - it is raised in the user's thread
            self._error = error
        self._calls.end()

    def _tasks(self, model: LoopModel, evaluate: Evaluate | None) -> Generator[LoopTask]:
        while (call := self._take()) is not None:
            if call.config is None:
                self._evaluate(call, model, evaluate)
                continue
            with model.training(call.model, call.kept, call.config.seed):
                yield LoopTask(call, model)

    def _close_tasks(self) -> None:
        if self._open is not None:
            self._open.close()

    def _take(self) -> LoopCall | None:
        """Return the next call that is still wanted; None at the end. Raises the error that has ended the jobs."""
        if (last := self._calls.current) is not None:
            text = "the training loop went on to the next task without task.report(model, examples=…)"
            last.fail(LearnerFailed(text, hint="report once for each task, or leave the loop by break"))
        while (call := self._calls.take()) is not None:
            if not call.is_answered:
                return call
        self._calls.end()  # for a later caller
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return None

    def _evaluate(self, call: LoopCall, model: LoopModel, evaluate: Evaluate | None) -> None:
        assert evaluate is not None
        try:
            call.answer(measured(call, model, evaluate))
        except Exception as error:
            call.fail(failure_of(error, "evaluate"))
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Fail the task in hand if the loop raised, else hand it back; let reports through, and end."""
        if isinstance(error, Exception) and (last := self._calls.current) is not None:
            last.fail(failure_of(error, "the training loop"))
        self._close_tasks()
        unfinished = self._calls.close()
        if self._thread is None:
            return
        if self._thread.is_alive():
            self._leave(unfinished=unfinished)
        while self._thread.is_alive():
            self._thread.join(JOIN_S)
        if error is None and self._error is not None and not isinstance(self._error, Cancelled):
            raise self._error


def loop_model(model: Any, travels: Any = None) -> LoopModel:
    """Return the form of a torch module, or of a mapping from names to arrays. Raises `InvalidJob` for anything else.

    Loads torch only for an object with a state_dict.
    """
    if isinstance(model, Mapping):
        from shoal.loop.array_model import ArrayModel

        return ArrayModel(model)
    if not callable(getattr(model, "state_dict", None)):
        text = f"the model of a loop is {type(model).__name__}, neither a torch module nor a mapping of names to arrays"
        raise InvalidJob(text, code="learner.model", hint="write node.tasks(model), with the model that is trained")
    try:
        from shoal.loop.module_model import ModuleModel
    except ModuleNotFoundError as error:
        raise not_installed(error, what="a torch module in a loop") from error
    return ModuleModel(model, travels)
