"""Tasks of many simulated nodes, trained at once.

When the first of a chunk is due, it is trained together with those others of the chunk that have the same amount of
training and alike learners. The others' results wait for their turn. An algorithm calls its learner as always: a
`TrainedLearner` stands in for it, which knows what training will come to.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from shoal.core.algorithm.algorithm import Algorithm, LocalTask, tree_slot
from shoal.core.algorithm.correction import Correction
from shoal.core.algorithm.filter import without_residuals
from shoal.core.algorithm.learner import Correct, ExtraLoss, Learner, Progress, TrainConfig, Trained, no_progress
from shoal.core.errors import InvalidPayload, LearnerFailed, ShoalError
from shoal.core.job.settings_change import apply_node_settings
from shoal.core.model.tree import Slots, Tree
from shoal.core.protocol.message import BlobRef, Metrics, Task
from shoal.learn.data.batches import TensorSource
from shoal.learn.stacked.row_draws import RANDOM
from shoal.learn.stacked.stacked_corrections import form_of, is_same
from shoal.learn.stacked.stacked_evaluation import StackedEvaluation
from shoal.learn.stacked.stacked_training import StackedResult, stack_key, train_stacked, why_not
from shoal.learn.stacked.task_chunks import (
    ALONE,
    AT_ONCE,
    CARD_CHUNK_BYTES,
    CHUNK_BYTES,
    EVALUATED_ALONE,
    EVALUATED_AT_ONCE,
    TaskChunk,
)
from shoal.learn.training.torch_learner import TorchLearner
from shoal.memory import REUSE_STACKS, configure_malloc

GROUP_MIN = 8
"""Learners that are trained at once: fewer gain nothing."""

STACKED_ELEMENTS_MAX = 100_000
"""Larger models train as fast one by one on a processor."""

FEW = f"fewer than {GROUP_MIN} learners are alike"


class EvaluatedLearner:
    """A learner that is evaluated with others, with the weights `base`. Any other call goes to the learner itself.

    `note` is told why it is evaluated alone, where it is.
    """

    def __init__(
        self, learner: TorchLearner, base: Tree, evaluation: StackedEvaluation, note: Callable[[str], None]
    ) -> None:
        self._learner, self._base, self._evaluation, self._note = learner, base, evaluation, note
        self._loaded: Tree | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._present(), name)

    def _present(self) -> TorchLearner:
        """Return the learner with the weights that were loaded last."""
        if self._loaded is not None:
            self._learner.load(self._loaded)
            self._loaded = None
        return self._learner

    def load(self, model: Tree) -> None:
        self._loaded = model

    def model(self) -> Tree:
        return self._present().model()

    def train(
        self,
        config: TrainConfig,
        *,
        correct: Correct | None = None,
        extra_loss: ExtraLoss | None = None,
        progress: Progress = no_progress,
    ) -> Trained:
        return self._present().train(config, correct=correct, extra_loss=extra_loss, progress=progress)

    def gradient(self, config: TrainConfig, *, progress: Progress = no_progress) -> tuple[Trained, Tree]:
        return self._present().gradient(config, progress=progress)

    def init(self, seed: int) -> Tree:
        return self._present().init(seed)

    def evaluate(self) -> Metrics:
        if self._learner.test_data is None:
            return {}
        if self._loaded is self._base:
            found = self._evaluation.of(self._learner)
            self._note(f"{EVALUATED_ALONE}{found}" if isinstance(found, str) else EVALUATED_AT_ONCE)
            if not isinstance(found, str):
                return found
        loaded, metrics = self._loaded, self._present().evaluate()
        self._loaded = loaded  # it is loaded once more only if training must be done after all
        return metrics


class TrainedLearner(EvaluatedLearner):
    """A learner that has been trained already: from `base`, with `config` and `correction`.

    `note` is told whether that training was the requested one.
    """

    def __init__(
        self,
        begun: BegunTask,
        base: Tree,
        evaluation: StackedEvaluation,
        made: StackedResult,
        note: Callable[[str], None],
    ) -> None:
        super().__init__(begun.learner, base, evaluation, note)
        self._config, self._correction, self._made = begun.config, begun.correction, made
        self._is_trained = False

    def load(self, model: Tree) -> None:
        super().load(model)
        self._is_trained = False

    def model(self) -> Tree:
        return self._made.model if self._is_trained else super().model()

    def train(
        self,
        config: TrainConfig,
        *,
        correct: Correct | None = None,
        extra_loss: ExtraLoss | None = None,
        progress: Progress = no_progress,
    ) -> Trained:
        is_known = self._loaded is self._base and config == self._config and is_same(correct, self._correction)
        self._is_trained = is_known and extra_loss is None
        self._note(self._how())
        if self._is_trained:
            if isinstance(correct, Correction):
                correct.count(self._made.steps, self._made.mean)
            return self._made.trained
        return super().train(config, correct=correct, extra_loss=extra_loss, progress=progress)

    def _how(self) -> str:
        if not self._is_trained:
            return f"{ALONE}they were asked for other training"
        return f"{ALONE}few learners have batches of their sizes" if self._made.alone >= 0.5 else AT_ONCE


class BegunTask(NamedTuple):
    """A task that has begun."""

    task: Task
    learner: TorchLearner
    config: TrainConfig
    correction: Correction | None

    @property
    def form(self) -> object:
        """A value that is equal for tasks with the same amount of training and corrections of one form."""
        return vars(self.config) | {"seed": 0}, form_of(self.correction)


class StackedTasks:
    """Trains the tasks of chunks, and keeps the results that wait for their turn. The process keeps freed stacks.

    `note` is told of each training in its turn, and of evaluations that were done one by one.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        learner_of: Callable[[str], Learner],
        open_blob: Callable[[BlobRef], Slots],
        note: Callable[[str], None],
    ) -> None:
        self._algorithm, self._learner_of, self._open, self._note = algorithm, learner_of, open_blob, note
        self._failed: dict[int, str] = {}
        self._kind_of: dict[str, int] = {}
        self._kinds: dict[Hashable, tuple[str, int]] = {}
        self._known: WeakKeyDictionary[TorchLearner, tuple[str, int]] = WeakKeyDictionary()
        configure_malloc(REUSE_STACKS)

    def learner(self, task: Task, chunk: TaskChunk) -> Learner:
        """Return the node's learner for a due task, already trained if possible, and evaluated with others."""
        if task.node not in chunk.made:
            learner = self._learner_of(task.node)
            reason = self._why_not_together(task, learner) or self._join_group(task, learner, chunk)
            if reason and task.kind == "train":
                self._note(f"{ALONE}{reason}")
            if reason:
                return self._unloaded(task, learner)
        return chunk.made.pop(task.node)

    def _unloaded(self, task: Task, learner: Learner) -> Learner:
        """Return a learner that need not load a model in order to find that it has no test data, or the learner
        itself."""
        if task.kind != "evaluate" or not isinstance(learner, TorchLearner) or learner.test_data is not None:
            return learner
        if type(learner).evaluate is not TorchLearner.evaluate or task.blob is None or task.reference is not None:
            return learner
        base = tree_slot(self._open(task.blob), "model")
        return EvaluatedLearner(learner, base, StackedEvaluation([learner], base), self._note)

    def why_alone(self, learner: Learner) -> str:
        """Return why learners like this one are trained one by one; empty if they can be stacked."""
        if type(self._algorithm).local is not Algorithm.local and not self._algorithm.trains_by_config:
            return f"{self._algorithm.name} trains in a way of its own"
        return self._kind(learner)[0]

    def chunk_bytes(self, learner: Learner) -> int:
        """Return the greatest size of a chunk's models, for learners like this one."""
        on_card = isinstance(learner, TorchLearner) and learner.device.type == "cuda"
        return CARD_CHUNK_BYTES if on_card else CHUNK_BYTES

    def _why_not_together(self, task: Task, learner: Learner) -> str:
        """Return why a task is done alone; empty if it can be done with others.

        Failures to train do not keep learners from being evaluated at once: another process may not know of them.
        """
        if task.kind == "init" or task.reference is not None or task.blob is None:
            return "models come as differences"
        reason = self.why_alone(learner)
        if reason or task.kind != "train":
            return reason
        return _why_too_few(learner) or self._failed.get(self._kind(learner)[1], "")

    def _join_group(self, task: Task, learner: Learner, chunk: TaskChunk) -> str:
        """Do the task with those of other learners that are alike; return why that is impossible, or an empty
        string."""
        assert isinstance(learner, TorchLearner)
        assert task.blob is not None
        slots = self._open(task.blob)
        base, kind = tree_slot(slots, "model"), self._kind(learner)[1]
        group = self._group(task, learner, kind, chunk)
        if task.kind == "evaluate":
            if len(group) < GROUP_MIN:
                return FEW
            evaluation = StackedEvaluation([own for _, own in group], base)
            chunk.made |= {other.node: EvaluatedLearner(own, base, evaluation, self._note) for other, own in group}
            return ""
        return self._train_group(self._begun_alike(task, group, slots, chunk), base, kind, chunk)

    def _train_group(self, group: Sequence[BegunTask], base: Tree, kind: int, chunk: TaskChunk) -> str:
        """Train learners at once; return why that is impossible, or an empty string."""
        if len(group) < GROUP_MIN:
            return FEW
        learners = [one.learner for one in group]
        corrections = [one.correction for one in group if one.correction is not None]
        try:
            configs = [one.config for one in group]
            results = train_stacked(learners, base, configs, corrections=corrections, are_alike=True)
        except (InvalidPayload, LearnerFailed) as error:
            self._failed[kind] = _why_failed(error)
            return self._failed[kind]
        evaluation = StackedEvaluation(learners, base)
        chunk.made |= {
            one.task.node: TrainedLearner(one, base, evaluation, made, self._note)
            for one, made in zip(group, results, strict=True)
        }
        return ""

    def _kind(self, learner: Learner) -> tuple[str, int]:
        """Return why a learner cannot be stacked, or else a number that learners which are alike share."""
        if type(learner) is not TorchLearner:
            return f"{type(learner).__name__} is not a TorchLearner", -1
        known = self._known.get(learner)
        if known is None:
            is_in_memory = isinstance(learner.train_data, TensorSource)
            known = self._known[learner] = self._new_kind(learner) if is_in_memory else (why_not([learner]), -1)
        return known

    def _new_kind(self, learner: TorchLearner) -> tuple[str, int]:
        key = stack_key(learner)
        known = self._kinds.get(key)
        if known is None:
            known = self._kinds[key] = self._why_not(learner), len(self._kinds)
        return known

    def _why_not(self, learner: TorchLearner) -> str:
        """Return why learners like this one cannot be stacked; empty if they can."""
        reason = why_not([learner])
        if learner.device.type == "cpu" and learner.layout.elements > STACKED_ELEMENTS_MAX:
            reason = f"the model has more than {STACKED_ELEMENTS_MAX:,} numbers"
        return reason

    def _group(
        self, first: Task, learner: TorchLearner, kind: int, chunk: TaskChunk
    ) -> list[tuple[Task, TorchLearner]]:
        """Return the tasks of the chunk with learners like that of the first one, in their order."""
        found: list[tuple[Task, TorchLearner]] = []
        for task in chunk.tasks:
            if task.node == first.node:
                found.append((first, learner))
                continue
            if self._kind_of.get(task.node, kind) != kind:
                continue
            own = self._learner_if_made(task.node)
            self._kind_of[task.node] = self._kind(own)[1] if own is not None else -1
            if isinstance(own, TorchLearner) and self._kind_of[task.node] == kind:
                found.append((task, own))
        return found

    def _begun_alike(
        self, first: Task, group: Sequence[tuple[Task, TorchLearner]], slots: Slots, chunk: TaskChunk
    ) -> list[BegunTask]:
        """Return those of a group with as much training and a correction of the same form as the first task."""
        begun = [self._begun(task, own, slots, chunk) for task, own in group if not _why_too_few(own)]
        form = next(one.form for one in begun if one.task is first)
        return [one for one in begun if one.form == form]

    def _learner_if_made(self, node: str) -> Learner | None:
        """Return a node's learner; None where making it fails, as it will in its own turn."""
        try:
            return self._learner_of(node)
        except ShoalError:
            return None

    def _begun(self, task: Task, learner: TorchLearner, slots: Slots, chunk: TaskChunk) -> BegunTask:
        algorithm = apply_node_settings(self._algorithm, task.numbers)
        local = LocalTask(task.id, task.kind, task.version, task.seed, slots, numbers=task.numbers)
        ref = chunk.memories.get(task.node)
        memory = without_residuals(self._open(ref)) if ref else {}
        return BegunTask(task, learner, algorithm.train_config(local), algorithm.correction(local, memory))


def _why_too_few(learner: Learner) -> str:
    """Return why a learner would end the training of all learners of a stack; empty if it would not."""
    too_few = isinstance(learner, TorchLearner) and learner.own_module.has_norms and learner.examples == 1
    return "BatchNorm cannot train on one example" if too_few else ""


def _why_failed(error: ShoalError) -> str:
    """Return why learners that seemed to be alike could not be trained at once."""
    if RANDOM in error.message:
        return "the model draws random numbers, which a GPU draws in another way for a stack"
    return f"they cannot be stacked ({error.message})"
