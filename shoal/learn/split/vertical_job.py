"""A job on vertical data on one side: the plan, the parts and the work of a network with a head for each party.

The coordinator's learner has the whole `VerticalNetwork`, and gives the shapes by one example of any values. A party's
learner has its head and its own features; the party that has the labels gives them, too.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

import torch
from torch import Tensor, nn

from shoal.core.errors import InvalidJob
from shoal.core.protocol.message import BlobRef, Blobs
from shoal.core.split.party_node import PartyNode
from shoal.core.split.split_plan import SplitPlan, TensorForm
from shoal.core.split.vertical_coordinator import VerticalCoordinator
from shoal.core.split.vertical_plan import VerticalPlan
from shoal.learn.data.batches import BatchOptions, IndexedSource
from shoal.learn.data.passes import BatchSource
from shoal.learn.split.cutting import activation_form
from shoal.learn.split.part_legs import batch_at
from shoal.learn.split.split_job import PartsJob, check_form, fitting_learner, new_part
from shoal.learn.split.trained_part import TrainedPart
from shoal.learn.split.vertical_legs import PartyLegs, TailLegs
from shoal.learn.split.vertical_network import VerticalNetwork, head_part
from shoal.learn.training.torch_learner import TorchLearner
from shoal.learn.training.weights import NAME_OF
from shoal.learn.user_errors import user_code


@dataclass(frozen=True)
class VerticalJob(PartsJob):
    """A job on vertical data. `labels`: "coordinator", or the party that has them and sends them with its
    activations."""

    name: str = "vertical"
    labels: str = "coordinator"


class Rows(IndexedSource):
    """The examples of other data in the batches of the whole network."""

    def __init__(self, source: IndexedSource, *, merge_small: bool) -> None:
        super().__init__([source.examples], BatchOptions(source.options.device, merge_small=merge_small))
        self._source = source

    def take(self, chosen: Tensor | slice) -> tuple[Tensor, ...]:
        return self._source.take(chosen)


class Party:
    """One party's side: its head and its data, of which the input number `place` is its own.

    Raises `InvalidJob` for data and a head that do not fit, `LearnerFailed` for an error in the user's code.
    """

    def __init__(
        self, job: PartsJob, name: str, learner: TorchLearner, head: nn.Module, source: BatchSource, place: int = 0
    ) -> None:
        self.name, self._job, self._learner, self._source, self._place = name, job, learner, source, place
        self._head = head_part(name, head)
        with user_code("reading the data"):
            inputs, target, examples = batch_at(source, job.batch_size, job.seed, 0)
        own = inputs[place] if place < len(inputs) else None
        if not isinstance(own, Tensor) or not isinstance(target, Tensor):
            raise InvalidJob(f"the data of {name} are not tensors", code="split.labels", hint="give tensors")
        with torch.no_grad(), user_code("computing a head"):
            output = copy.deepcopy(head).eval()(own)
        labels = TensorForm(NAME_OF[target.dtype], tuple(target.shape[1:])) if name == job.labels else None
        self.plan: SplitPlan = job.plan(
            (activation_form(f"the head of {name}", output, examples),), labels, is_party=True
        )

    @classmethod
    def of(cls, job: PartsJob, name: str, given: object, *, merge_small: bool) -> Party:
        """Return the side of a party whose learner has its own head and data. `merge_small`: the whole network has
        norms, and a small rest of the data joins the batch before."""
        learner = fitting_learner(given, "the learner")
        learner.use(device="cpu")
        learner.init(job.seed)
        if not isinstance(learner.train_data, IndexedSource):
            text = f"the data of {name} cannot be taken by rows"
            raise InvalidJob(text, code="learner.data", hint="give tensors or arrays")
        return cls(job, name, learner, learner.module, Rows(learner.train_data, merge_small=merge_small))

    @cached_property
    def form(self) -> str:
        """Return a hash of the head's tensors and of the tensors that the party sends."""
        tensors = [(one.name, one.dtype, one.shape) for one in self.node_part().layout.leaves]
        return sha256(f"{tensors} {self.plan.cuts} {self.plan.label_form}".encode()).hexdigest()

    def check_form(self, form: str, name: str) -> None:
        """Raise `InvalidJob` unless this learner, which errors call `name`, has this form."""
        check_form(self.form, form, name)

    @property
    def batches(self) -> int:
        """Return the batches of each turn. Raises `InvalidJob` for none."""
        return self._job.batches(self._source.steps(self._job.batch_size))

    def node(self, _name: str = "") -> PartyNode:
        """Return a new machine."""
        return PartyNode(self.name, self.plan, self._source.examples or 0, self.batches)

    def node_part(self) -> TrainedPart:
        """Return a new part of the head, with an optimizer of its own."""
        return new_part([self._head], self._learner, self._job.lr)

    def node_legs(self, blobs: Blobs) -> PartyLegs:
        """Return the work of the party."""
        return PartyLegs(self.plan, blobs, self.node_part, self.batch)

    def batch(self, round_: int, number: int) -> tuple[Tensor, Tensor, int]:
        """Return (input, target, examples) of a batch."""
        position = round_ * self.batches + number
        inputs, target, examples = batch_at(self._source, self._job.batch_size, self._job.seed, position)
        return inputs[self._place], target, examples


class VerticalCut:
    """A learner of a whole `VerticalNetwork`: the parties, with its data, and the tail. `name`: of the learner, for
    errors.

    Raises `InvalidJob` for a network, data or settings that do not fit, `LearnerFailed` for an error in its code.
    """

    def __init__(self, job: VerticalJob, given: object, name: str = "the learner") -> None:
        self.job, self._learner = job, fitting_learner(given, name)
        self._learner.use(device="cpu")
        self._learner.init(job.seed)
        network = self._learner.module
        if not isinstance(network, VerticalNetwork):
            text = f"{name} has a {type(network).__name__} as its model"
            raise InvalidJob(text, code="job.learners", hint="give it a VerticalNetwork")
        self._tail, names, source = network.tail_part(), list(network.heads), self._learner.train_data
        if job.labels not in ("coordinator", *names):
            hint = f"use coordinator, {' or '.join(names)}"
            raise InvalidJob(f"the labels are at {job.labels!r}, which is not a party", code="split.labels", hint=hint)
        with user_code("reading the data"):
            inputs, *_ = batch_at(source, job.batch_size, job.seed, 0)
        if len(inputs) != len(names):
            text, hint = f"{len(inputs)} inputs for {len(names)} heads", "give the data (x_1, …, x_n, y) as tensors"
            raise InvalidJob(text, code="split.labels", hint=hint)
        self.parties = {
            one: Party(job, one, self._learner, network.heads[one], source, place) for place, one in enumerate(names)
        }
        self.plan = VerticalPlan({one: party.plan for one, party in self.parties.items()})

    @property
    def step_bytes(self) -> tuple[int, int]:
        """Return the bytes of tensors in one step: (of the requests, of the answers)."""
        each = [one.step_bytes(self.job.batch_size) for one in self.plan.parties.values()]
        return sum(up for up, _ in each), sum(down for _, down in each)

    @property
    def step_text(self) -> str:
        """Return a sentence about the bytes of a row."""
        forms = ", ".join(f"{one.cuts[0].nbytes(1)} of {name}" for name, one in self.plan.parties.items())
        return f"bytes of activations for each row: {forms}"

    @property
    def merge_small(self) -> bool:
        """Return whether a small rest of the data joins the batch before, because the network has norms."""
        return self._learner.own_module.has_norms

    @cached_property
    def forms(self) -> dict[str, str]:
        """Return the form of each party."""
        return {name: party.form for name, party in self.parties.items()}

    @property
    def form(self) -> str:
        """Return a hash of all forms."""
        return sha256(f"{self.forms}".encode()).hexdigest()

    def plan_of(self, node: str) -> SplitPlan:
        """Return a party's plan. Raises `Refused` for another node."""
        return self.plan.of(node)

    @property
    def node_plans(self) -> list[SplitPlan]:
        """Return the plans of the parties."""
        return list(self.plan.parties.values())

    def start_parts(self) -> list[TrainedPart]:
        """Return new parts of the parties, then of the coordinator."""
        return [*(one.node_part() for one in self.parties.values()), self._tail_part()]

    def _tail_part(self) -> TrainedPart:
        return new_part([self._tail], self._learner, self.job.lr)

    def coordinator(self, blobs: Blobs, parts: Sequence[BlobRef]) -> VerticalCoordinator:
        """Return a new machine of the coordinator. `parts`: the first ones, in the order of `start_parts`."""
        return VerticalCoordinator(self.plan, blobs, parts[:-1], parts[-1])

    def coordinator_legs(self, blobs: Blobs) -> TailLegs:
        """Return the work of the coordinator, with the learner's loss, and its labels if no party has them."""
        own = next(iter(self.parties.values())).batch if self.job.labels == "coordinator" else None
        return TailLegs(self.plan, blobs, self._tail_part, self._learner.loss, own)
