"""The work of the parties and of the coordinator with vertical data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from shoal.core.protocol.message import BlobRef, Blobs
from shoal.core.protocol.metrics import TRAIN_LOSS
from shoal.core.split.part_state import Compute, Computed
from shoal.core.split.split_plan import ACTIVATIONS, GRADIENT, LABELS, SplitPlan
from shoal.core.split.vertical_plan import VerticalPlan
from shoal.learn.split.part_legs import Batch, PartLegs, Tensors, gradient_of
from shoal.learn.split.row_ids import rows_of
from shoal.learn.split.trained_part import TrainedPart
from shoal.learn.training.measures import Loss

BatchOf = Callable[[int, int], tuple[Tensor, Tensor, int]]
"""(input, labels, examples) of a round's batch."""


class PartyLegs(PartLegs):
    """The work of a party. `data`: the batches of some rows."""

    receives = "answer"

    def __init__(
        self,
        plan: SplitPlan,
        blobs: Blobs,
        make: Callable[[], TrainedPart],
        data: Callable[[Tensor | None], BatchOf],
    ) -> None:
        super().__init__(plan, blobs, make)
        self._data = data
        self._rows: BlobRef | None = None
        self._batch: BatchOf | None = None

    def _begin(self, part: TrainedPart, work: Compute, number: int) -> Batch:
        if self._batch is None or work.rows != self._rows:
            rows = None if work.rows is None else torch.from_numpy(rows_of(self.blobs, work.rows))
            self._batch, self._rows = self._data(rows), work.rows
        value, target, examples = self._batch(work.round, number)
        output = part.modules[0](value)
        labels = {} if self.plan.label_form is None else {LABELS: target}
        answer = yield {ACTIVATIONS: output, **labels}, {}, examples
        output.backward(answer[GRADIENT])
        part.step()


class TailLegs(PartLegs):
    """The work of the coordinator: the blobs of a batch are those of the parties in their order.

    `batch`: has the labels; None if a party sends them.
    """

    receives = "request"

    def __init__(
        self, plan: VerticalPlan, blobs: Blobs, make: Callable[[], TrainedPart], loss: Loss, batch: BatchOf | None
    ) -> None:
        super().__init__(plan.common, blobs, make)
        self._parties, self._loss, self._batch = tuple(plan.parties.values()), loss, batch
        self._blobs_per_batch = len(self._parties)

    def _begin(self, part: TrainedPart, work: Compute, number: int) -> Batch:
        activations, labels = list[Tensor](), list[Tensor]()
        for _ in self._parties:
            request = yield {}, {}, 0
            activations.append(request[ACTIVATIONS].requires_grad_())
            labels += [request[LABELS]] if LABELS in request else []
        if self._batch is not None:
            labels = [self._batch(work.round, number)[1]]
        loss = self._loss(part.modules[0](torch.cat(activations, 1)), labels[0])
        loss.backward()  # type: ignore[no-untyped-call]
        part.step()
        gradients = {str(place): gradient_of(one) for place, one in enumerate(activations)}
        yield gradients, {TRAIN_LOSS: float(loss.detach())}, len(activations[0])

    def _with_blobs(self, done: Computed, tensors: Tensors, work: Compute) -> Computed:
        answers = (
            self._stored(
                plan, {GRADIENT: tensors[str(place)]}, self._seed(work, done.batch, len(self._parties) + place)
            )
            for place, plan in enumerate(self._parties)
        )
        return replace(done, answers=tuple(answers))

    def _opened(self, ref: BlobRef, leg: int, examples: int) -> Tensors:
        return self._read(self._parties[leg], ref, 0, examples)
