"""The state of one side's part of a split model, and the work on it.

A state is a checkpoint and the blobs received since. The work is a function of both, so a new process reaches the
same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.errors import InvalidPayload
from shoal.core.model.tree import Bytes, Layout, Tree, same_layout
from shoal.core.model.tree_checks import first_not_finite
from shoal.core.protocol.machine import JobEvent, Save, Timer, Wake
from shoal.core.protocol.message import BlobRef, Blobs, Metrics
from shoal.core.protocol.split_message import FromSplitNode, SplitMessage, ToSplitNode

FINISH = -1
"""Number of a leg without a batch: bring the part to its state and return a checkpoint of it."""

DONE = "all rounds are done"
"""Reason of the end of a job that has not failed."""


@dataclass(frozen=True)
class BatchInputs:
    """The blobs that a side has received for one batch, in the order of the legs."""

    examples: int
    blobs: tuple[BlobRef, ...]


@dataclass(frozen=True)
class PartState:
    """A part after `next_batch` batches of a turn: the checkpoint contains `batch` of them, `inputs` are the others."""

    checkpoint: BlobRef
    batch: int = 0
    inputs: tuple[BatchInputs, ...] = ()

    @property
    def next_batch(self) -> int:
        """The number of the next batch."""
        return self.batch + len(self.inputs)

    def after(self, inputs: BatchInputs) -> PartState:
        """Return the state after one more batch."""
        return replace(self, inputs=(*self.inputs, inputs))

    def compacted(self, checkpoint: BlobRef | None) -> PartState:
        """Return the same state with a new checkpoint, if there is one."""
        return self if checkpoint is None else PartState(checkpoint, self.next_batch)

    def refs(self) -> Iterator[BlobRef]:
        """Yield the blobs that it refers to."""
        yield self.checkpoint
        for one in self.inputs:
            yield from one.blobs


def part_model(blobs: Blobs, ref: BlobRef) -> Tree:
    """Return the tensors of a part."""
    return tree_slot(blobs.get(ref), "model")


def part_fault(blobs: Blobs, before: BlobRef, after: BlobRef) -> str:
    """Return why a part cannot follow on an earlier one; empty if it can."""
    found = part_model(blobs, after)
    try:
        same_layout(part_model(blobs, before).layout, found.layout)
    except InvalidPayload as error:
        return error.message
    wrong = first_not_finite(found)
    return f"{wrong[0]} is not finite" if wrong is not None else ""


@dataclass(frozen=True)
class Compute:
    """Effect: do this leg of the next batch in the background; `Computed` follows.

    `received`: the blobs of this batch up to this leg. With `checkpoint`, also store the part as it is before the
    batch.
    """

    turn: int
    round: int
    node: str
    leg: int
    state: PartState
    received: BatchInputs | None = None
    checkpoint: bool = False
    rows: BlobRef | None = None
    """The numbers of a party's rows, in the order of the job; None: all."""


@dataclass(frozen=True)
class Computed:
    """Event: a leg is done. `blob`: the request or the answer; none after `FINISH`. `error`: one line for people."""

    turn: int
    batch: int
    leg: int
    blob: BlobRef | None = None
    examples: int = 0
    metrics: Metrics = field(default_factory=dict)
    checkpoint: BlobRef | None = None
    error: str = ""
    answers: tuple[BlobRef, ...] = ()
    """Instead of `blob`, with vertical data: the answer to each party."""


@dataclass(frozen=True)
class MaskIds:
    """Effect: make a party's message of this leg of an intersection; leg 2: its rows. `received`: the other party's
    message of the leg before."""

    number: int
    leg: int
    received: BlobRef | None = None


@dataclass(frozen=True)
class Masked:
    """Event: that is done. `blob`: None if the parties have no id in common. `rows`: those in common, after leg 2."""

    number: int
    leg: int
    blob: BlobRef | None = None
    rows: int = 0
    error: str = ""


@dataclass(frozen=True)
class SplitSend:
    """Effect: send a message; to `HUB` or to a node."""

    to: str
    message: SplitMessage


@dataclass(frozen=True)
class SplitVersion:
    """Effect: a round has closed with this model. `parts`: those of the nodes, then the coordinator's; one of the nodes
    with split learning, one for each party with vertical data. `nodes`: those whose turns counted, in order.
    `batches`, `examples`: of all turns."""

    number: int
    parts: tuple[BlobRef, ...]
    metrics: Metrics
    nodes: tuple[str, ...]
    batches: int = 0
    examples: int = 0


def whole_model(blobs: Blobs, parts: Iterable[BlobRef]) -> Tree:
    """Return one tree with the tensors of several parts."""
    trees = [tree_slot(blobs.get(ref), "model") for ref in parts]
    owner = {name: tree for tree in trees for name in tree}
    entries = ((one.name, one.dtype, one.shape) for tree in trees for one in tree.layout.leaves)
    layout = Layout.of(entries, "", frozenset().union(*(tree.layout.statistics for tree in trees)))
    data = b"".join(bytes(_tensor_bytes(owner[leaf.name], leaf.name)) for leaf in layout.leaves)
    return Tree(layout, memoryview(data))


def _tensor_bytes(tree: Tree, name: str) -> Bytes:
    leaf = tree.layout.index[name]
    return tree.block(leaf.start, leaf.stop)


CoordinatorEvent = FromSplitNode | Computed | Timer
NodeEvent = ToSplitNode | Computed | Masked | Timer
SplitEffect = SplitSend | Compute | MaskIds | Save | Wake | SplitVersion | JobEvent
