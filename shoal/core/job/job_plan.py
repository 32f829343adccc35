"""A job's length, start and aggregation, and the point that it has reached."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from shoal.core.algorithm.filter import Filter
from shoal.core.job.early_stop import EarlyStop
from shoal.core.job.lr_schedule import LrSchedule
from shoal.core.job.stages import Stage
from shoal.core.job.update_bounds import UpdateBounds
from shoal.core.model.aggregation import SumKind
from shoal.core.protocol.message import BlobRef, Metrics
from shoal.core.protocol.metrics import STAGE
from shoal.core.scheduling.selection import Selection

Phase = Literal["waiting", "running", "evaluating", "done", "stopped"]

Mode = Literal["server", "gossip", "returning"]
"""The leader of a job: the schedule; its peers; its peers, which are handing it back."""


@dataclass(frozen=True)
class JobPlan:
    """Length, start and aggregation of a job."""

    versions: int
    """Number of versions to make; then the job is done."""
    seed: int = 0
    aggregation_precision: SumKind = "float64"
    initial_model: BlobRef | None = None
    """The initial model, if the job came with one; None: a member is asked for one."""
    init_timeout_s: float = 300.0
    """Seconds to wait for an initial model before another node is asked, and for the final evaluations."""
    filters: tuple[Filter, ...] = ()
    """Filters of updates, and of models that are sent to holders of a reference."""
    handback_timeout_s: float = 30.0
    """Time limit in seconds for recalled peers to hand back their models, and then for some to measure the result."""
    accuracy_drop_max: float = 0.0
    """Accuracy that a job may lose on its way back from its peers; beyond, it is paused. 0: it is not measured."""
    first_version: int = 0
    """Number of the version `start`: above 0 if a job continues that another coordinator has led."""
    term: int = 0
    """The term of that coordinator: this one's are above."""
    selection: Selection = field(default_factory=Selection)
    """Selection of nodes: those that may be asked, and those that are if fewer are wanted."""
    shards: int = 1
    """Parts that the model is split into at the hub (`shoal.core.algorithm.sharding`)."""
    bounds: UpdateBounds = field(default_factory=UpdateBounds)
    """Bounds on one node's effect on a version."""
    lr_schedule: LrSchedule = field(default_factory=LrSchedule)
    """The local learning rate of each version."""
    early_stop: EarlyStop = field(default_factory=EarlyStop)
    """The rule by which the job ends before its last version."""
    base_model: str = ""
    """The base model that all models of the job have, as in `Layout`; empty: the first model decides."""
    stages: tuple[Stage, ...] = ()
    """The stages of a network that grows; none: it does not."""

    @cached_property
    def sends_differences(self) -> bool:
        """True if every version is sent as a difference to the one before."""
        return any(one.sends_differences for one in self.filters)

    def task_seed(self, version: int, node: str = "", again: int = 0) -> int:
        """Return the seed of a task, or of a version. (An initial model has the job's own seed: the same from any
        node.) `again`: reports on this version that the node has had counted already."""
        text = f"{self.seed}/{version}/{node}" + (f"/{again}" if again else "")
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


@dataclass
class JobState:
    """Phase, mode, version and the reasons that people read."""

    phase: Phase = "waiting"
    mode: Mode = "server"
    version: int = 0
    paused_at: float | None = None
    paused_why: str = ""
    ends_after_round: str = ""
    """The reason why the job stops when the current version has closed; "": it goes on."""
    round_seconds: tuple[float, ...] = ()
    """Durations of the last versions, oldest first."""
    numbers: Metrics = field(default_factory=dict)
    """The schedule's state; names without a dot are sent to nodes."""
    waiting_for: str = ""
    not_asked: str = ""
    """Members that are not asked, with reasons, as last reported."""
    best_value: float | None = None
    """The best value of this stage of the metric that is watched, which version `best_version` had."""
    best_version: int = 0
    stage: int = 0
    """The stage of the newest version; in phase waiting, that of the model for which the job waits."""
    stage_version: int = 0
    """The first version of the stage."""

    @property
    def is_over(self) -> bool:
        return self.phase in ("done", "stopped")

    @property
    def stage_numbers(self) -> Metrics:
        """Return what tells the stage, among the numbers of a task or a version."""
        return {STAGE: float(self.stage)} if self.stage else {}

    def enter_stage(self, stage: int) -> None:
        """Wait for the model of a stage. Measurements of the one before do not count any more."""
        self.phase, self.stage = "waiting", stage
        self.round_seconds, self.best_value = (), None
