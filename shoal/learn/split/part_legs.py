"""The work of each side of split learning: its legs of a batch, from the state that the machine names.

A batch is a generator: it yields the blobs to send and gets those that were received. A process that has not done the
batches before does them again from the blobs that were kept, with the same seeds, and reaches the same bits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import islice
from typing import Any, ClassVar

import torch
from torch import Tensor

from shoal.core.algorithm.learner import TrainConfig
from shoal.core.errors import LearnerFailed
from shoal.core.protocol.message import BlobRef, Blobs, Metrics
from shoal.core.protocol.metrics import TRAIN_LOSS
from shoal.core.split.part_state import FINISH, BatchInputs, Compute, Computed
from shoal.core.split.split_plan import ACTIVATIONS, GRADIENT, LABELS, Direction, SplitPlan
from shoal.learn.data.batches import split
from shoal.learn.data.passes import BatchSource, training_batches
from shoal.learn.seeds import generator_of, seeded
from shoal.learn.split.trained_part import TrainedPart, tensors_of, tree_of
from shoal.learn.training.measures import Loss
from shoal.learn.training.torch_learner import TorchLearner
from shoal.learn.user_errors import user_code

CPU = torch.device("cpu")

Tensors = dict[str, Tensor]
Batch = Generator[tuple[Tensors, Metrics, int], Tensors, None]
"""Yields (blob to send, metrics, examples)."""


@dataclass
class LivePart:
    """A part in memory in one turn, after `batch` batches. `running`: the batch under way, which has got `got`
    blobs."""

    part: TrainedPart
    round: int
    batch: int
    running: Batch | None = None
    got: int = 0
    made: tuple[Tensors, Metrics, int] = field(default_factory=lambda: ({}, {}, 0))


class PartLegs(ABC):
    """A function from `Compute` to `Computed`, which keeps the parts of open turns in memory."""

    receives: ClassVar[Direction]

    def __init__(self, plan: SplitPlan, blobs: Blobs, make: Callable[[], TrainedPart]) -> None:
        self.plan, self.blobs, self._make = plan, blobs, make
        self._blobs_per_batch = plan.legs
        self._live: dict[int, LivePart] = {}

    @abstractmethod
    def _begin(self, part: TrainedPart, work: Compute, number: int) -> Batch:
        """Return the generator of a batch."""

    def __call__(self, work: Compute) -> Computed:
        """Do one leg. Raises `LearnerFailed` for an error in the user's code."""
        with user_code("training"):
            live = self._at_state(work)
            checkpoint = self.blobs.put(live.part.save()) if work.checkpoint else None
            number = work.state.next_batch
            if work.leg == FINISH:
                del self._live[work.turn]
                return Computed(work.turn, number, FINISH, checkpoint=checkpoint)
            tensors, metrics, examples = self._advance(live, work, number, work.received)
            done = Computed(work.turn, number, work.leg, None, examples, metrics, checkpoint)
            return self._with_blobs(done, tensors, work)

    def _at_state(self, work: Compute) -> LivePart:
        """Return the part with all batches of the state, and at most a part of the next."""
        self._live = {turn: one for turn, one in self._live.items() if one.round == work.round}
        live, state = self._live.get(work.turn), work.state
        if live is None:
            live = LivePart(self._make(), work.round, state.batch)
            live.part.load(self.blobs.get(state.checkpoint))
            self._live[work.turn] = live
        for number in range(live.batch, state.next_batch):
            self._advance(live, work, number, state.inputs[number - state.batch])
        return live

    def _advance(
        self, live: LivePart, work: Compute, number: int, received: BatchInputs | None
    ) -> tuple[Tensors, Metrics, int]:
        """Give a batch the blobs that it has not got; return what it has made from the last one."""
        blobs = received.blobs if received is not None else ()
        if live.running is None:
            live.part.clear()
            live.running, live.got = self._begin(live.part, work, number), 0
            self._resume(live, work, number, None)
        for leg in range(live.got, len(blobs)):
            assert received is not None
            self._resume(live, work, number, self._opened(blobs[leg], leg, received.examples))
            live.got += 1
        if live.got == self._blobs_per_batch:
            live.running, live.batch = None, number + 1
        return live.made

    def _resume(self, live: LivePart, work: Compute, number: int, received: Tensors | None) -> None:
        """Run a batch to its next blob, or to its end."""
        assert live.running is not None
        with seeded(self._seed(work, number, live.got if received is not None else -1), CPU):
            try:
                live.made = next(live.running) if received is None else live.running.send(received)
            except StopIteration:
                live.made = {}, {}, 0

    def _seed(self, work: Compute, number: int, leg: int) -> int:
        text = f"{self.plan.seed} {self.receives} {work.node} {work.round} {number} {leg}"
        return int.from_bytes(sha256(text.encode()).digest()[:7], "big")

    def _with_blobs(self, done: Computed, tensors: Tensors, work: Compute) -> Computed:
        """Return the result with the stored blobs to send."""
        return replace(
            done, blob=self._stored(self.plan, tensors, self._seed(work, done.batch, work.leg + self.plan.legs))
        )

    def _stored(self, plan: SplitPlan, tensors: Tensors, seed: int) -> BlobRef:
        slots = {name: tree_of({name: tensor.detach()}) for name, tensor in tensors.items()}
        return self.blobs.put(plan.packed(dict(slots), seed))

    def _opened(self, ref: BlobRef, leg: int, examples: int) -> Tensors:
        return self._read(self.plan, ref, leg, examples)

    def _read(self, plan: SplitPlan, ref: BlobRef, leg: int, examples: int) -> Tensors:
        trees = plan.opened(self.blobs.get(ref), leg, self.receives, examples)
        return {name: tensors_of(tree)[name] for name, tree in trees.items()}


class CoordinatorLegs(PartLegs):
    """The work of the coordinator. `loss`: (output, labels) to scalar, where the labels are sent."""

    receives = "request"

    def __init__(self, plan: SplitPlan, blobs: Blobs, make: Callable[[], TrainedPart], loss: Loss) -> None:
        super().__init__(plan, blobs, make)
        self._loss = loss

    def _begin(self, part: TrainedPart, work: Compute, number: int) -> Batch:
        request = yield {}, {}, 0
        activations = request[ACTIVATIONS].requires_grad_()
        output, metrics = part.modules[0](activations), Metrics()
        if LABELS in request:
            loss = self._loss(output, request[LABELS])
            loss.backward()  # type: ignore[no-untyped-call]
            metrics = {TRAIN_LOSS: float(loss.detach())}
        else:
            request = yield {ACTIVATIONS: output}, {}, len(activations)
            output.backward(request[GRADIENT])
        part.step()
        yield {GRADIENT: gradient_of(activations)}, metrics, len(activations)


class NodeLegs(PartLegs):
    """The work of a node on a learner's data. `batches`: of each turn."""

    receives = "answer"

    def __init__(
        self, plan: SplitPlan, blobs: Blobs, make: Callable[[], TrainedPart], learner: TorchLearner, batches: int
    ) -> None:
        super().__init__(plan, blobs, make)
        self._learner, self._batches = learner, batches

    def _begin(self, part: TrainedPart, work: Compute, number: int) -> Batch:
        position = work.round * self._batches + number
        data, plan = self._learner.train_data, self.plan
        inputs, target, examples = batch_at(data, plan.batch_size, plan.seed, position)
        output = part.modules[0](*inputs)
        request = {ACTIVATIONS: output}
        if self.plan.labels == "coordinator":
            answer = yield {**request, LABELS: target}, {}, examples
        else:
            answer = yield request, {}, examples
            activations = answer[ACTIVATIONS].requires_grad_()
            loss = self._learner.loss(part.modules[1](activations), target)
            loss.backward()  # type: ignore[no-untyped-call]
            answer = yield {GRADIENT: gradient_of(activations)}, {TRAIN_LOSS: float(loss.detach())}, examples
        output.backward(answer[GRADIENT])
        part.step()


def batch_at(source: BatchSource, batch_size: int, seed: int, position: int) -> tuple[Sequence[Any], Any, int]:
    """Return (inputs, target, examples) of one batch in the sequence of mini-batches of these data."""
    config = TrainConfig(steps=1, batch_size=batch_size, batch_index=position, sequence_seed=seed)
    batch, _ = next(islice(training_batches(source, config, generator_of(0)), 1))
    return *split(batch.data), batch.examples


def gradient_of(tensor: Tensor) -> Tensor:
    """Return the gradient at a cut. Raises `LearnerFailed` if the loss gave none."""
    if tensor.grad is None:
        text, hint = "the loss does not depend on the activations at the cut", "move the cut"
        raise LearnerFailed(text, code="split.cut", hint=hint)
    return tensor.grad
