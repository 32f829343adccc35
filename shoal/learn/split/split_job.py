"""A split job on one side: the plan, the parts and the work of a cut model. Simulations, coordinators and nodes use it.

The coordinator's learner needs one example of data, of any values: it gives the shapes at the cut.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from math import ceil
from typing import Any, get_args

from torch import nn

from shoal.core.algorithm.filter import Filter
from shoal.core.algorithm.learner import TrainConfig
from shoal.core.errors import InvalidJob
from shoal.core.protocol.message import BlobRef, Blobs
from shoal.core.split.split_coordinator import SplitCoordinator
from shoal.core.split.split_node import SplitNode
from shoal.core.split.split_plan import LabelPlace, SplitPlan, TensorForm, TurnOrder
from shoal.learn.data.passes import training_batches
from shoal.learn.seeds import generator_of
from shoal.learn.split.cut_choice import SplitSpeed, choose_cut, measured_pieces
from shoal.learn.split.cutting import Cut, cut_forms, split_model
from shoal.learn.split.part_legs import CoordinatorLegs, NodeLegs
from shoal.learn.split.trained_part import TrainedPart
from shoal.learn.training.torch_learner import TorchLearner
from shoal.learn.user_errors import user_code


@dataclass(frozen=True)
class PartsJob:
    """Settings of a job whose nodes have a part of the model each. `steps`: batches of each turn; 0: `epochs` passes
    over the node's data."""

    name: str = "split"
    labels: str = "node"
    rounds: int = 1
    epochs: float = 1.0
    steps: int = 0
    batch_size: int = 32
    lr: float = 0.1
    seed: int = 0
    filters: Sequence[Filter] = ()
    checkpoint_every: int = 16
    turn_timeout_s: float = 600.0

    def plan(self, cuts: tuple[TensorForm, ...], label_form: TensorForm | None, **more: Any) -> SplitPlan:
        """Return the plan for these forms. Raises `InvalidJob`."""
        return SplitPlan(
            cuts=cuts,
            label_form=label_form,
            rounds=self.rounds,
            batch_size=self.batch_size,
            filters=tuple(self.filters),
            checkpoint_every=self.checkpoint_every,
            turn_timeout_s=self.turn_timeout_s,
            seed=self.seed,
            **more,
        )

    def batches(self, per_pass: int | None) -> int:
        """Return the batches of each turn; `per_pass`: of the data, None if unknown. Raises `InvalidJob` for none."""
        found = self.steps or ceil(self.epochs * (per_pass or 0) - 1e-9)
        if found < 1:
            text = f"a turn of {found} batches"
            raise InvalidJob(text, code="job.split", hint="set steps, or epochs above 0 for data of known length")
        return found


@dataclass(frozen=True)
class SplitJob(PartsJob):
    """A split job. `cut`: as in `shoal.learn.split.cutting`, or "auto": measured."""

    cut: Cut = "auto"
    labels: LabelPlace = "node"
    order: TurnOrder = "sequential"
    speed: SplitSpeed = field(default_factory=SplitSpeed)
    """For `cut="auto"`."""

    def __post_init__(self) -> None:
        """Check the place of the labels. Raises `InvalidJob`."""
        if self.labels not in get_args(LabelPlace):
            raise InvalidJob(f"split: labels is {self.labels!r}", hint=f"use {' or '.join(get_args(LabelPlace))}")


class CutLearner:
    """A learner whose model is cut as a job says. `name`: of the learner, for errors. `nodes`: that the first round
    waits for. `job`: with the chosen cut, if it was "auto".

    Raises `InvalidJob` for a cut, data or a learner that does not fit, `LearnerFailed` for an error in its code.
    """

    def __init__(self, job: SplitJob, given: object, nodes: int, name: str = "the learner") -> None:
        learner = fitting_learner(given, name)
        learner.use(device="cpu")
        learner.init(job.seed)
        batch = _first_batch(learner, job)
        if job.cut == "auto":
            last = 1 if job.labels == "node" else 0
            job = replace(job, cut=choose_cut(measured_pieces(learner.module, batch[0]), job.speed, last=last))
        self.job, self.learner = job, learner
        self.data_form = ""
        """Text that differs for other rows, at a party."""
        self.forms: dict[str, str] = {}
        """Forms of parties; none here, where all nodes have one form."""
        self.merge_small = learner.own_module.has_norms
        self._model = split_model(learner.module, job.cut, job.labels)
        cuts, label_form = cut_forms(self._model, batch, job.labels)
        self.plan = job.plan(cuts, label_form, order=job.order, min_nodes=nodes)

    @cached_property
    def batches(self) -> int:
        """Return the batches of each turn. Raises `InvalidJob` for none."""
        return self.job.batches(self.learner.train_data.steps(self.job.batch_size))

    @property
    def step_text(self) -> str:
        """Return a sentence about the cut and the bytes of a step."""
        (up, down), size = self.step_bytes, self.job.batch_size
        return f"the model is cut at {self.job.cut}; a step of {size} examples sends {up} bytes up, {down} down"

    @cached_property
    def form(self) -> str:
        """Return a hash of the tensors of both sides and at the cut, which all learners of a job have alike."""
        layouts = self.node_part().layout, self.coordinator_part().layout
        tensors = [(one.name, one.dtype, one.shape) for layout in layouts for one in layout.leaves]
        return sha256(f"{tensors} {self.plan.cuts} {self.plan.label_form}".encode()).hexdigest()

    @property
    def step_bytes(self) -> tuple[int, int]:
        """Return the bytes of tensors in one step: (of the requests, of the answers)."""
        return self.plan.step_bytes(self.job.batch_size)

    def plan_of(self, _node: str) -> SplitPlan:
        """Return a node's plan, which all have alike."""
        return self.plan

    @property
    def node_plans(self) -> list[SplitPlan]:
        """Return the plans of the nodes of which there is a part."""
        return [self.plan]

    def start_parts(self) -> list[TrainedPart]:
        """Return new parts of a node, then of the coordinator."""
        return [self.node_part(), self.coordinator_part()]

    def coordinator(self, blobs: Blobs, parts: Sequence[BlobRef]) -> SplitCoordinator:
        """Return a new machine of the coordinator. `parts`: the first ones, in the order of `start_parts`."""
        return SplitCoordinator(self.plan, blobs, *parts)

    def node(self, name: str) -> SplitNode:
        """Return a new machine of the node of that name."""
        return SplitNode(name, self.plan, self.batches, float(self.learner.examples or self.batches))

    def node_part(self) -> TrainedPart:
        """Return a new part of the node's modules, with an optimizer of its own."""
        return self._part(self._model.of_node)

    def coordinator_part(self) -> TrainedPart:
        """Return a new part of the coordinator's modules, with an optimizer of its own."""
        return self._part((self._model.middle,))

    def _part(self, modules: Sequence[nn.Sequential]) -> TrainedPart:
        return new_part(modules, self.learner, self.job.lr)

    def node_legs(self, blobs: Blobs) -> NodeLegs:
        """Return the work of a node, on the learner's data."""
        return NodeLegs(self.plan, blobs, self.node_part, self.learner, self.batches)

    def coordinator_legs(self, blobs: Blobs) -> CoordinatorLegs:
        """Return the work of the coordinator, with the learner's loss."""
        return CoordinatorLegs(self.plan, blobs, self.coordinator_part, self.learner.loss)


def new_part(modules: Sequence[nn.Sequential], learner: TorchLearner, lr: float) -> TrainedPart:
    """Return a new part of copies of modules, with an optimizer of its own."""
    with user_code("making the optimizer"):
        return TrainedPart(copy.deepcopy(tuple(modules)), learner.optimizer, lr)


def check_form(found: str, wanted: str, name: str) -> None:
    """Raise `InvalidJob` unless a learner's form, which errors call `name`, is that of the job."""
    if found != wanted:
        text = f"{name} has other tensors than the job, in its model or at the cut"
        raise InvalidJob(text, code="split.cut", hint="give all learners the same model, and data of one shape")


def fitting_learner(learner: object, name: str) -> TorchLearner:
    """Return the learner. Raises `InvalidJob` for one that is not a `TorchLearner`, and for settings that no side
    could follow."""
    if not isinstance(learner, TorchLearner):
        text = f"{name} is a {type(learner).__name__}"
        raise InvalidJob(text, code="job.learners", hint="split learning needs a TorchLearner")
    config = learner.config
    if config.precision != "float32" or config.clip_norm is not None or config.accumulate != 1:
        text = f"{name}: split learning has no precision, clip_norm and accumulate of its own"
        raise InvalidJob(text, code="job.learners", hint="leave them out of its TorchConfig")
    return learner


def _first_batch(learner: TorchLearner, job: SplitJob) -> Any:
    config = TrainConfig(steps=1, batch_size=job.batch_size, batch_index=0, sequence_seed=job.seed)
    learner.place()
    with user_code("reading the data"):
        batch, _ = next(training_batches(learner.train_data, config, generator_of(0)))
    return batch.data
