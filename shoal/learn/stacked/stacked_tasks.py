"""Tasks of many simulated nodes, trained at once.

When the first of a chunk is due, it is trained together with those others of the chunk that have the same amount of
training and alike learners. The others' results wait for their turn. An algorithm calls its learner as always: a
`TrainedLearner` stands in for it, which knows what training will come to.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from shoal.core.algorithm.algorithm import Algorithm, LocalTask, tree_slot
from shoal.core.algorithm.correction import Correction
from shoal.core.algorithm.filter import without_unsent
from shoal.core.algorithm.learner import Correct, ExtraLoss, Learner, Tick, TrainConfig, Trained, no_tick
from shoal.core.errors import InvalidPayload, LearnerFailed, ShoalError
from shoal.core.job.settings_change import apply_node_settings
from shoal.core.model.tree import Slots, Tree
from shoal.core.protocol.message import BlobRef, Metrics, Task
from shoal.learn.stacked.stacked_corrections import form_of, is_same
from shoal.learn.stacked.stacked_training import StackedResult, stack_key, train_stacked, why_not
from shoal.learn.stacked.task_chunks import CARD_CHUNK_BYTES, CHUNK_BYTES, TaskChunk
from shoal.learn.training.torch_learner import TorchLearner

GROUP_MIN = 8
"""Learners that are trained at once: fewer gain nothing."""

STACKED_ELEMENTS_MAX = 100_000
"""Larger models train as fast one by one on a processor."""


RANDOM = "called random operation"
"""Part of torch's error for a model that draws random numbers."""


class TrainedLearner:
    """A learner that has been trained already: from `base`, with `budget` and `correction`. Any other call goes to the
    learner itself.

    `count` is called with True if that training is the requested one.
    """

    def __init__(
        self,
        learner: TorchLearner,
        base: Tree,
        budget: TrainConfig,
        correction: Correction | None,
        made: StackedResult,
        count: Callable[[bool], None],
    ) -> None:
        self._learner, self._base, self._budget, self._correction = learner, base, budget, correction
        self._made, self._count = made, count
        self._loaded: Tree | None = None
        self._is_trained = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._present(), name)

    def _present(self) -> TorchLearner:
        """Return the learner with the weights that were loaded last."""
        if self._loaded is not None:
            self._learner.load(self._loaded)
            self._loaded = None
        return self._learner

    def load(self, model: Tree) -> None:
        self._loaded, self._is_trained = model, False

    def model(self) -> Tree:
        return self._made.model if self._is_trained else self._present().model()

    def train(
        self,
        budget: TrainConfig,
        *,
        correct: Correct | None = None,
        extra_loss: ExtraLoss | None = None,
        tick: Tick = no_tick,
    ) -> Trained:
        is_known = self._loaded is self._base and budget == self._budget and is_same(correct, self._correction)
        self._is_trained = is_known and extra_loss is None
        self._count(self._is_trained)
        if self._is_trained:
            if isinstance(correct, Correction):
                correct.count(self._made.steps, self._made.mean)
            return self._made.trained
        return self._present().train(budget, correct=correct, extra_loss=extra_loss, tick=tick)

    def gradient(self, budget: TrainConfig, *, tick: Tick = no_tick) -> tuple[Trained, Tree]:
        return self._present().gradient(budget, tick=tick)

    def init(self, seed: int) -> Tree:
        return self._present().init(seed)

    def evaluate(self) -> Metrics:
        if self._learner.test_data is None:
            return {}
        loaded, metrics = self._loaded, self._present().evaluate()
        self._loaded = loaded  # it is loaded once more only if training must be done after all
        return metrics


class _Begun(NamedTuple):
    """A task that has begun."""

    task: Task
    learner: TorchLearner
    budget: TrainConfig
    correction: Correction | None

    @property
    def form(self) -> object:
        """A value that is equal for tasks with the same amount of training and corrections of one form."""
        return replace(self.budget, seed=0), form_of(self.correction)


class StackedTasks:
    """Trains the tasks of chunks, and keeps the results that wait for their turn.

    `note` is told of each training in its turn: "" if it was done at once with others, else why not.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        learner_of: Callable[[str], Learner],
        open_blob: Callable[[BlobRef], Slots],
        note: Callable[[str], None],
    ) -> None:
        self._algorithm, self._learner_of, self._open, self._note = algorithm, learner_of, open_blob, note
        self._made: WeakKeyDictionary[TaskChunk, dict[str, TrainedLearner]] = WeakKeyDictionary()
        self._failed: dict[int, str] = {}
        self._kind_of: dict[str, int] = {}
        self._kinds: dict[Hashable, int] = {}
        self._known: WeakKeyDictionary[TorchLearner, tuple[str, int]] = WeakKeyDictionary()

    def learner(self, task: Task, chunk: TaskChunk) -> Learner:
        """Return the node's learner for a due task, already trained if possible."""
        made = self._made.setdefault(chunk, {})
        if task.node not in made:
            learner = self._learner_of(task.node)
            reason = self._train_group(task, learner, chunk) if task.kind == "train" else None
            if reason:
                self._note(reason)
            if reason != "":
                return learner
        return made.pop(task.node)

    def _count(self, alone: float, at_once: bool) -> None:
        if not at_once:
            self._note("they were asked for other training")
        else:
            self._note("few learners have batches of their sizes" if alone >= 0.5 else "")

    def why_alone(self, learner: Learner) -> str:
        """Return why learners like this one are trained one by one; empty if they can be stacked."""
        if type(self._algorithm).local is not Algorithm.local and not self._algorithm.trains_by_config:
            return f"{self._algorithm.name} trains in a way of its own"
        return self._kind(learner)[0]

    def chunk_bytes(self, learner: Learner) -> int:
        """Return the greatest size of a chunk's models, for learners like this one."""
        on_card = isinstance(learner, TorchLearner) and learner.device.type == "cuda"
        return CARD_CHUNK_BYTES if on_card else CHUNK_BYTES

    def _train_group(self, task: Task, learner: Learner, chunk: TaskChunk) -> str:
        """Train this learner and others that are alike; return why that is impossible, or an empty string."""
        if task.reference is not None or task.body is None:
            return "models come as differences"
        reason, kind = self.why_alone(learner), self._kind(learner)[1]
        if reason or kind in self._failed:
            return reason or self._failed[kind]
        assert isinstance(learner, TorchLearner)
        slots = self._open(task.body)
        first = self._begun(task, learner, slots, chunk)
        group = self._group(first, slots, kind, chunk)
        if len(group) < GROUP_MIN:
            return f"fewer than {GROUP_MIN} learners are alike"
        base = tree_slot(slots, "model")
        try:
            corrections = [one.correction for one in group if one.correction is not None]
            budgets = [one.budget for one in group]
            results = train_stacked([one.learner for one in group], base, budgets, corrections=corrections)
        except (InvalidPayload, LearnerFailed) as error:
            self._failed[kind] = _why_failed(error)
            return self._failed[kind]
        self._made[chunk] |= {
            one.task.node: TrainedLearner(
                one.learner, base, one.budget, one.correction, made, partial(self._count, made.alone)
            )
            for one, made in zip(group, results, strict=True)
        }
        return ""

    def _kind(self, learner: Learner) -> tuple[str, int]:
        """Return why a learner cannot be stacked, or else a number that learners which are alike share."""
        if type(learner) is not TorchLearner:
            return f"{type(learner).__name__} is not a TorchLearner", -1
        known = self._known.get(learner)
        if known is None:
            reason = why_not([learner])
            if learner.device.type == "cpu" and learner.layout.elements > STACKED_ELEMENTS_MAX:
                reason = f"the model has more than {STACKED_ELEMENTS_MAX:,} numbers"
            kind = -1 if reason else self._kinds.setdefault(stack_key(learner), len(self._kinds))
            known = self._known[learner] = reason, kind
        return known

    def _group(self, first: _Begun, slots: Slots, kind: int, chunk: TaskChunk) -> list[_Begun]:
        """Return the tasks of the chunk that are like this one, with alike learners, in their order."""
        found: list[_Begun] = []
        for task in chunk.tasks:
            if task.node == first.task.node:
                found.append(first)
                continue
            if self._kind_of.get(task.node, kind) != kind:
                continue
            own = self._learner_if_made(task.node)
            self._kind_of[task.node] = self._kind(own)[1] if own is not None else -1
            if not isinstance(own, TorchLearner) or self._kind_of[task.node] != kind:
                continue
            begun = self._begun(task, own, slots, chunk)
            if begun.form == first.form:
                found.append(begun)
        return found

    def _learner_if_made(self, node: str) -> Learner | None:
        """Return a node's learner; None where making it fails, as it will in its own turn."""
        try:
            return self._learner_of(node)
        except ShoalError:
            return None

    def _begun(self, task: Task, learner: TorchLearner, slots: Slots, chunk: TaskChunk) -> _Begun:
        algorithm = apply_node_settings(self._algorithm, task.numbers)
        local = LocalTask(task.id, task.kind, task.version, task.seed, slots, numbers=task.numbers)
        ref = chunk.memories.get(task.node)
        memory = without_unsent(self._open(ref)) if ref else {}
        return _Begun(task, learner, algorithm.train_config(local), algorithm.correction(local, memory))


def _why_failed(error: ShoalError) -> str:
    """Return why learners that seemed to be alike could not be trained at once."""
    if RANDOM in error.message:
        return "the model draws random numbers, as dropout does, and stacked they would be others"
    return f"they cannot be stacked ({error.message})"
