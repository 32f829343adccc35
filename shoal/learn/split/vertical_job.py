"""A job on vertical data on one side: the plan, the parts and the work of a network with a head for each party.

The coordinator's learner has the whole `VerticalNetwork`, and gives the shapes by one example of any values. A party's
learner has its head and its own features; the party that has the labels gives them, too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

import torch
from torch import Tensor, nn

from shoal.core.errors import InvalidJob
from shoal.core.protocol.message import BlobRef, Blobs
from shoal.core.split.part_state import Compute, Computed, Masked, MaskIds
from shoal.core.split.party_node import PartyNode
from shoal.core.split.split_plan import SplitPlan, TensorForm
from shoal.core.split.vertical_coordinator import VerticalCoordinator
from shoal.core.split.vertical_plan import VerticalPlan
from shoal.learn.data.batches import BatchOptions, IndexedSource
from shoal.learn.data.passes import BatchSource
from shoal.learn.split.cutting import activation_form
from shoal.learn.split.part_legs import batch_at
from shoal.learn.split.row_ids import RowIds
from shoal.learn.split.split_job import PartsJob, fitting_learner, new_part
from shoal.learn.split.trained_part import TrainedPart
from shoal.learn.split.vertical_legs import BatchOf, PartyLegs, TailLegs
from shoal.learn.split.vertical_network import VerticalNetwork, head_part
from shoal.learn.training.torch_learner import TorchLearner
from shoal.learn.training.weights import NAME_OF
from shoal.learn.user_errors import user_code
from shoal.trust.intersection import check_ids


@dataclass(frozen=True)
class VerticalJob(PartsJob):
    """A job on vertical data. `labels`: "coordinator", or the party that has them and sends them with its
    activations."""

    name: str = "vertical"
    labels: str = "coordinator"


class PartyRows(IndexedSource):
    """Rows of other data, in this order, in the batches of the whole network. `rows`: their numbers; None: all."""

    def __init__(self, source: IndexedSource, rows: Tensor | None, *, merge_small: bool) -> None:
        options = BatchOptions(source.options.device, merge_small=merge_small)
        super().__init__([source.examples if rows is None else len(rows)], options)
        self._source, self._rows = source, rows

    def chosen(self, rows: Tensor) -> PartyRows:
        """Return some of these rows."""
        return PartyRows(self._source, rows, merge_small=self.options.merge_small)

    def take(self, chosen: Tensor | slice) -> tuple[Tensor, ...]:
        return self._source.take(chosen if self._rows is None else self._rows[chosen])


class Party:
    """One party's side: its head and its data, of which the input number `place` is its own.

    Raises `InvalidJob` for data and a head that do not fit, `LearnerFailed` for an error in the user's code.
    """

    def __init__(
        self, job: PartsJob, name: str, learner: TorchLearner, head: nn.Module, source: BatchSource, place: int = 0
    ) -> None:
        self.name, self._job, self._learner, self._source, self._place = name, job, learner, source, place
        self._head = head_part(name, head)
        self.ids: Sequence[str | bytes] = ()
        """Ids of the rows, to align them first."""
        self.ids_max = 0
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
    def of(cls, job: PartsJob, name: str, given: object, ids_max: int, *, merge_small: bool) -> Party:
        """Return the side of a party whose learner has its own head and data, and at most `ids_max` ids, unless 0.
        `merge_small`: the whole network has norms, and a small rest of the data joins the batch before."""
        learner = fitting_learner(given, "the learner")
        learner.use(device="cpu")
        learner.init(job.seed)
        if not isinstance(learner.train_data, IndexedSource):
            text = f"the data of {name} cannot be taken by rows"
            raise InvalidJob(text, code="learner.data", hint="give tensors or arrays")
        party = cls(job, name, learner, learner.module, PartyRows(learner.train_data, None, merge_small=merge_small))
        if ids_max:
            party.ids, party.ids_max = _ids_of(learner, learner.train_data.examples, ids_max), ids_max
        elif learner.config.ids:
            text, hint = "the learner has ids, and the job does not align rows", "set ids_max in the job's file"
            raise InvalidJob(text, code="psi.ids", hint=hint)
        return party

    @cached_property
    def form(self) -> str:
        """Return a hash of the head's tensors and of the tensors that the party sends."""
        tensors = [(one.name, one.dtype, one.shape) for one in self.node_part().layout.leaves]
        return sha256(f"{tensors} {self.plan.cuts} {self.plan.label_form}".encode()).hexdigest()

    @property
    def batches(self) -> int:
        """Return the batches of each turn. Raises `InvalidJob` for none."""
        return self._job.batches(self._source.steps(self._job.batch_size))

    def node(self, _name: str = "") -> PartyNode:
        """Return a new machine."""
        if self.ids:
            return PartyNode(self.name, self.plan, None, self._batches_of)
        batches = self.batches
        return PartyNode(self.name, self.plan, self._source.examples or 0, lambda _: batches)

    @property
    def data_form(self) -> str:
        """Return a text that differs for other rows, or other ids."""
        return f"{self._source.examples} {sha256(repr(list(self.ids)).encode()).hexdigest()}"

    def _batches_of(self, rows: int) -> int:
        return self._job.batches(self._of(torch.arange(rows)).steps(self._job.batch_size))

    def _of(self, rows: Tensor) -> PartyRows:
        assert isinstance(self._source, PartyRows)
        return self._source.chosen(rows)

    def node_part(self) -> TrainedPart:
        """Return a new part of the head, with an optimizer of its own."""
        return new_part([self._head], self._learner, self._job.lr)

    def node_legs(self, blobs: Blobs) -> Callable[[Compute | MaskIds], Computed | Masked]:
        """Return the work of the party, of batches and of an intersection."""
        legs, ids = PartyLegs(self.plan, blobs, self.node_part, self.data), RowIds(self.ids, blobs)
        return lambda work: ids(work) if isinstance(work, MaskIds) else legs(work)

    def data(self, rows: Tensor | None) -> BatchOf:
        """Return the function that gives (input, target, examples) of a round's batch of these rows; None: all."""
        source = self._source if rows is None else self._of(rows)
        job, batches = self._job, self._job.batches(source.steps(self._job.batch_size))

        def batch(round_: int, number: int) -> tuple[Tensor, Tensor, int]:
            inputs, target, examples = batch_at(source, job.batch_size, job.seed, round_ * batches + number)
            return inputs[self._place], target, examples

        return batch


def _ids_of(learner: TorchLearner, rows: int, ids_max: int) -> Sequence[str | bytes]:
    """Return a learner's ids. Raises `InvalidJob` unless there is one for each row, all different and not too many."""
    ids = list(learner.config.ids)
    if len(ids) != rows or len(ids) > ids_max:
        text = f"{len(ids)} ids for {rows} rows; the job allows {ids_max}"
        raise InvalidJob(text, code="psi.ids", hint="give TorchConfig(ids=…) the id of each row")
    check_ids(ids)
    return ids


class VerticalCut:
    """A learner of a whole `VerticalNetwork`: the parties, with its data, and the tail. `name`: of the learner, for
    errors. `ids_max`: of each party that aligns its rows first, or 0.

    Raises `InvalidJob` for a network, data or settings that do not fit, `LearnerFailed` for an error in its code.
    """

    def __init__(self, job: VerticalJob, given: object, name: str = "the learner", ids_max: int = 0) -> None:
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
        self.plan = VerticalPlan({one: party.plan for one, party in self.parties.items()}, ids_max)

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
        own = next(iter(self.parties.values())).data(None) if self.job.labels == "coordinator" else None
        return TailLegs(self.plan, blobs, self._tail_part, self._learner.loss, own)
