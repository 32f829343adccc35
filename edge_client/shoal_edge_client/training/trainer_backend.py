"""Place of the learner: in this process's training thread, in a child process, or in a process on another machine.

A thread costs nothing, and accepts objects as learners. A child process leaves this one free to answer during
training, and may die alone. A command of a batch scheduler starts a process on another machine. The results are the
same, bit for bit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from shoal.core.algorithm.algorithm import Algorithm, LocalResult
from shoal.core.algorithm.capability import check_learner
from shoal.core.algorithm.filter import Filter
from shoal.core.algorithm.learner import Learner, check_stages, no_progress
from shoal.core.client.task_runner import TaskRunner
from shoal.core.errors import InvalidJob, ShoalError
from shoal.core.model.tree import Slots, Tree
from shoal.core.protocol.message import Metrics, Task, TaskStatus
from shoal.jobs.spec import JobSpec
from shoal.learn.compute_threads import compute_threads, set_threads
from shoal.learn.example_count import count_examples
from shoal.learn.model_form import describe_layout, layout_of
from shoal.learn.user_errors import user_code
from shoal.loop.learner import LoopLearner
from shoal.runtime.blob_files import FileBlob
from shoal.runtime.durable_files import FileSource
from shoal.runtime.threads import SerialExecutor
from shoal.runtime.training.cards import LearnerDevices, process_device
from shoal.runtime.training.command_process import TrainerCommand
from shoal.runtime.training.remote import RemoteResult, RemoteTaskRun, TaskInputs
from shoal.runtime.training.site.group import ranks_of_torchrun
from shoal.runtime.training.training_process import (
    StartTraining,
    TrainingProcess,
    TrainingSetup,
    start_by_command,
    start_child,
)
from shoal.wire.payload import open_payload
from shoal_edge_client.settings import EdgeSettings

NOT_CALLABLE = ("", "none")
"""Values of `peer_listen` with which no other node calls this one."""


class TrainerTask(Protocol):
    """A running task, see `shoal.core.client.task_runner`. `base`: after the first piece, the model that the node
    holds."""

    @property
    def started(self) -> bool: ...

    @property
    def reference(self) -> Slots | FileBlob: ...

    def can_continue(self, task: Task) -> bool: ...

    def run_piece(self, task: Task) -> LocalResult | RemoteResult | TaskStatus | None: ...


StartTrainerTask = Callable[[TaskInputs], TrainerTask]
"""Takes a task of one job in hand."""


Evaluator = Callable[[Tree], Awaitable[Metrics]]
"""Metrics of a model on this node's own held-out data. Raises `ShoalError`."""


class TrainerBackend(Protocol):
    """The place where the learner runs. Every method but `close` and `evaluator` blocks, runs in the training thread,
    and raises `ShoalError`."""

    @property
    def compute(self) -> LearnerDevices:
        """Return the learner's devices once it is loaded; none before."""
        ...

    @property
    def model_form(self) -> dict[str, Any]:
        """Return the form of the learner's model once it is loaded (`shoal.learn.model_form`); {} if unknown."""
        ...

    def open(self) -> None:
        """Load the learner."""
        ...

    def load_base(self, path: Path) -> None:
        """Replace the base model of the learner by that of a file, which stays there. `model_form` tells the new one.

        Raises `InvalidPayload` if its tensors are not those of the learner's.
        """
        ...

    def task_starter(self, spec: JobSpec) -> StartTrainerTask:
        """Return the function that starts tasks of that job, once the learner is loaded. Any thread may call.

        Raises `InvalidJob` where it is known already that the learner cannot do them.
        """
        ...

    def count_examples(self, seed: int) -> float:
        """Return the number of examples of the learner."""
        ...

    def evaluator(self, spec: JobSpec, executor: SerialExecutor) -> Evaluator:
        """Return the evaluator of peers' models in a job, for the event loop. `executor` runs all tasks."""
        ...

    def close(self) -> None:
        """Stop all work. Any thread may call."""
        ...


def require_learner(settings: EdgeSettings, learner: Learner | None) -> None:
    """Raise `InvalidJob` if there is no learner, as an object or by name."""
    if learner is None and not settings.learner:
        hint = "add --learner file.py:name or --learner package.module:name"
        raise InvalidJob("no learner", code="learner.missing", hint=hint)


def trainer_backend(settings: EdgeSettings, learner: Learner | None, folder: Path) -> TrainerBackend:
    """Return the backend that the settings ask for. `folder`: for blobs on their way. Raises `InvalidJob`."""
    require_learner(settings, learner)
    is_loop = isinstance(learner, LoopLearner)  # which divides its own training, if it does
    processes = 0 if ranks_of_torchrun() > 1 and not is_loop else settings.processes
    apart = settings.trainer in ("process", "command") or processes != 1
    if apart and learner is not None:
        hint = 'name it, "file.py:name" or "package.module:name", or leave trainer, processes and torchrun out'
        raise InvalidJob("an object cannot go into another process", code="learner.options", hint=hint)
    if settings.trainer == "command":
        command = TrainerCommand(settings.trainer_command, settings.trainer_cancel_command, settings.trainer_timeout_s)
        start = partial(start_by_command, command)
        return ProcessTrainer(settings, _shared(settings, folder), processes, start, settings.trainer_idle_s)
    if apart or (settings.trainer == "auto" and learner is None and settings.peer_listen not in NOT_CALLABLE):
        return ProcessTrainer(settings, folder, processes)
    return ThreadTrainer(settings, learner)


def _shared(settings: EdgeSettings, folder: Path) -> Path:
    """Return the folder for a training process elsewhere: one for this node and coordinator alone."""
    if settings.trainer_dir is None:
        return folder
    return settings.trainer_dir.expanduser() / settings.node / folder.parent.name / folder.name


class ThreadTrainer:
    """A learner in this process."""

    def __init__(self, settings: EdgeSettings, learner: Learner | None) -> None:
        self._settings, self._given = settings, learner
        self._learner: Learner | None = None
        self._threads_before = 0
        self.compute = LearnerDevices()
        self.model_form: dict[str, Any] = {}

    def open(self) -> None:
        from shoal.learn.loading import load_learner, with_device

        settings, choices = self._settings, {"device": self._settings.device, "precision": self._settings.precision}
        if self._given is not None:
            self._learner = with_device(self._given, **choices)
        else:
            self._learner = load_learner(settings.learner, settings.options, **choices)
        layout = layout_of(self._learner)
        is_loop = isinstance(self._learner, LoopLearner)  # it trains in the user's thread, which is left as it is
        threads = settings.threads if is_loop else compute_threads(settings.threads, layout)
        self._threads_before = set_threads(threads)
        self.compute = LearnerDevices((process_device(getattr(self._learner, "device", "")),))
        self.model_form = describe_layout(layout)

    def load_base(self, path: Path) -> None:
        from shoal.learn.loading import replace_base

        assert self._learner is not None
        replace_base(self._learner, open_payload(FileSource(path)))
        self.model_form = describe_layout(layout_of(self._learner))

    def task_starter(self, spec: JobSpec) -> StartTrainerTask:
        assert self._learner is not None
        algorithm = spec.build_algorithm()
        check_learner(algorithm, self._learner)
        check_stages(self._learner, len(spec.stages))
        return partial(start_in_thread, algorithm, self._learner, tuple(spec.build_filters()))

    def count_examples(self, seed: int) -> float:
        assert self._learner is not None
        return count_examples(self._learner, seed)

    def evaluator(self, spec: JobSpec, executor: SerialExecutor) -> Evaluator:
        """Return an evaluator that runs between two pieces of work: there is one learner."""
        assert self._learner is not None
        algorithm, learner = spec.build_algorithm(), self._learner

        def evaluate(model: Tree) -> Metrics:
            with user_code("the learner's evaluate"):
                return _metrics(TaskRunner(algorithm, learner, {"model": model}).run_piece(EVALUATION))

        return lambda model: executor.run(partial(evaluate, model))

    def close(self) -> None:
        """Let torch compute as before. The owner of the executor waits for a running call."""
        set_threads(self._threads_before)


def start_in_thread(
    algorithm: Algorithm, learner: Learner, filters: tuple[Filter, ...], given: TaskInputs
) -> TaskRunner:
    """Return a task that runs in the calling thread."""
    return TaskRunner(algorithm, learner, given.slots, given.reference, given.memory, filters, given.progress)


EVALUATION = Task((0, 0), "self", "evaluate", 0, 0)


def _metrics(made: LocalResult | RemoteResult | TaskStatus | None) -> Metrics:
    return (
        {str(name): float(value) for name, value in made.metrics.items()}
        if isinstance(made, LocalResult | RemoteResult)
        else {}
    )


class ProcessTrainer:
    """A learner in a process that `start` starts, or in several that train together.

    A second one, started on demand, evaluates peers' models, so that exchanges need not wait for a local round.
    `idle_s`: as for `TrainingProcess`.
    """

    def __init__(
        self,
        settings: EdgeSettings,
        folder: Path,
        processes: int = 1,
        start: StartTraining = start_child,
        idle_s: float = 0.0,
    ) -> None:
        self.training = TrainingProcess(replace(self._setup(settings, folder), processes=processes), start, idle_s)
        evaluation = self._setup(settings, folder.with_name("evaluation"))
        self._evaluation = TrainingProcess(evaluation, start, idle_s)
        self._evaluator_thread = SerialExecutor("shoal-evaluation")

    @staticmethod
    def _setup(settings: EdgeSettings, folder: Path) -> TrainingSetup:
        return TrainingSetup(
            settings.learner,
            folder,
            options=settings.options,
            device=settings.device,
            precision=settings.precision,
            threads=settings.threads,
            level=settings.log_level,
        )

    @property
    def compute(self) -> LearnerDevices:
        return self.training.compute

    @property
    def model_form(self) -> dict[str, Any]:
        return self.training.model_form

    def open(self) -> None:
        self.training.open()

    def load_base(self, path: Path) -> None:
        """Start the learner's processes again, with that file; as they were if it does not fit.

        Raises `InvalidJob` under torchrun, because this process ends with that of its learner then.
        """
        if not self.training.setup.processes:
            hint = "load it in the learner, or start the node with processes = N"
            raise InvalidJob("torchrun's processes keep the base model that they began with", hint=hint)
        before = self.training.setup.base
        try:
            self._use_base(str(path.absolute()))
        except ShoalError:
            self._use_base(before)
            raise

    def _use_base(self, path: str) -> None:
        for process in (self._evaluation, self.training):
            process.use(replace(process.setup, base=path))
        self.training.open()

    def task_starter(self, spec: JobSpec) -> StartTrainerTask:
        self.training.check(spec.build_algorithm())
        return partial(RemoteTaskRun, self.training, spec.model_dump(mode="json"))

    def count_examples(self, seed: int) -> float:
        return float(self.training.ask({"do": "count_examples", "seed": seed})["examples"])

    def evaluator(self, spec: JobSpec, executor: SerialExecutor) -> Evaluator:
        job = spec.model_dump(mode="json")

        def evaluate(model: Tree) -> Metrics:
            given = TaskInputs(EVALUATION, {"model": model}, {}, {}, None, self._evaluation.blobs, no_progress)
            return _metrics(RemoteTaskRun(self._evaluation, job, given).run_piece(EVALUATION))

        return lambda model: self._evaluator_thread.run(partial(evaluate, model))

    def close(self) -> None:
        self.training.close()
        self._evaluation.close()
        self._evaluator_thread.close()
