"""Execution of a task piece by piece, the same in every world.

Most algorithms do a task in one piece. One that continues until it is asked (dynamic averaging) returns `Continue`
after each piece; between two pieces the task may be amended, other jobs may run, and the process may die, which
loses only the pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from shoal.core.algorithm.algorithm import Algorithm, LocalResult, LocalTask, run_task
from shoal.core.algorithm.filter import Filter, pack_with_feedback, without_residuals
from shoal.core.algorithm.learner import Learner, Progress, no_progress
from shoal.core.algorithm.reference_model import unpack_task
from shoal.core.job.settings_change import apply_node_settings
from shoal.core.model.tree import Slots
from shoal.core.protocol.message import Task, TaskStatus
from shoal.core.protocol.metrics import STAGE


@dataclass
class TaskRunner:
    """`slots`, `base`, `memory`: the opened blobs that the task and the node's state name; empty where there is none.

    After `piece` has been called, `base` is what the node holds from now on, if the job has a base at all.
    """

    algorithm: Algorithm
    learner: Learner
    slots: Slots
    reference: Slots = field(default_factory=dict)
    memory: Slots = field(default_factory=dict)
    filters: Sequence[Filter] = ()
    progress: Progress = no_progress
    check: int = 0
    carry: Slots | None = None
    started: bool = False
    learner_done: Callable[[], None] = lambda: None
    """Called in each piece once no call of the learner follows."""

    def run_piece(self, task: Task) -> LocalResult | TaskStatus | None:
        """Do the next piece of the task, as it reads now. None: go on, there is nothing to tell."""
        if not self.started:
            self._begin(task)
        local = LocalTask(
            id=task.id,
            kind=task.kind,
            version=task.version,
            seed=task.seed,
            slots=self.slots,
            progress=self.progress,
            reference=self.reference,
            numbers=task.numbers,
            check=self.check,
            carry=self.carry,
            is_recalled=task.recall,
        )
        memory = self._memory_of_stage(task)
        mine = without_residuals(memory)
        made = run_task(self.algorithm, self.learner, local, mine)
        self.learner_done()
        if isinstance(made, LocalResult):
            return self._packed(made, task, mine, memory)
        self.carry, self.check = made.carry, self.check + 1
        if made.values is None and not task.checks_allowed:
            return None
        return TaskStatus(task.node, task.id, self.check, made.values or {}, made.state)

    def _memory_of_stage(self, task: Task) -> Slots:
        """Return the private memory without its stage; empty if it is of another stage, whose model was another."""
        if not self.memory:
            return {}
        memory = {name: value for name, value in self.memory.items() if name != STAGE}
        return memory if self.memory.get(STAGE, 0) == task.numbers.get(STAGE, 0) else {}

    def _packed(self, made: LocalResult, task: Task, mine: Slots, memory: Slots) -> LocalResult:
        """Return the encoded update; the encoding error joins the private memory, and counts only if the update
        does."""
        residuals = {name: value for name, value in memory.items() if name not in mine}
        slots, left = made.slots, residuals
        if task.kind == "train" and self.filters:
            slots, left = pack_with_feedback(self.filters, made.slots, residuals, task.seed)
        if made.memory is None and (left is residuals or not left):
            return made if slots is made.slots else replace(made, slots=slots)
        stage: Slots = {STAGE: task.numbers[STAGE]} if STAGE in task.numbers else {}
        return replace(made, slots=slots, memory=(mine if made.memory is None else made.memory) | left | stage)

    def _begin(self, task: Task) -> None:
        self.started, self.algorithm = True, apply_node_settings(self.algorithm, task.numbers)
        self.slots, self.reference = unpack_task(task, self.slots, self.reference, self.filters)

    def can_continue(self, task: Task) -> bool:
        """Return whether the next piece may be done without waiting for the hub."""
        return task.recall or not task.checks_allowed or self.check < task.checks_allowed
