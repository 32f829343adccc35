"""The plan of a split job, and the bytes of one step by formula.

Gupta and Raskar: "Distributed learning of deep neural network over multiple agents", J. Network and Computer
Applications 2018, section 3; Vepakomma et al.: "Split learning for health", 2018, for labels that stay at the node;
Thapa et al.: "SplitFed: When Federated Learning Meets Split Learning", AAAI 2022, for nodes in parallel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, get_args

from annotated_types import Interval

from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.algorithm.filter import Filter, check_filters, pack_tree, packed_layout, unpack_tree
from shoal.core.errors import InvalidJob, InvalidPayload
from shoal.core.errors.ranges import PositiveFloat, PositiveInt, check_ranges
from shoal.core.model.tree import DTYPES, RANK, Layout, Slots, Tree, same_layout

LabelPlace = Literal["node", "coordinator"]
TurnOrder = Literal["sequential", "parallel"]
Direction = Literal["request", "answer"]

ACTIVATIONS, GRADIENT, LABELS = "activations", "gradient", "labels"
BLOB_BYTES_MAX = 1 << 30
"""Bytes of the activations of one batch."""


@dataclass(frozen=True)
class TensorForm:
    """Type of a tensor that is exchanged, and its shape for one example."""

    dtype: str
    shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.dtype not in RANK or any(size < 1 for size in self.shape):
            raise InvalidJob(f"a cut of type {self.dtype} and shape {list(self.shape)}", code="split.cut")

    def layout(self, name: str, examples: int) -> Layout:
        """Return the layout of this tensor for that number of examples."""
        return Layout.of([(name, self.dtype, (examples, *self.shape))])

    def nbytes(self, examples: int) -> int:
        """Return the bytes for that number of examples."""
        count = examples
        for size in self.shape:
            count *= size
        return count * DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class SplitPlan:
    """Settings of a split job that both sides know.

    `cuts`: the form of the activations at the cut; if the labels stay at the node, also at the second cut, before its
    last layers. `label_form`: of the labels, if they are sent. `is_party`: True for a party of vertical data, which
    has one cut, and sends labels if it has them.
    """

    name: ClassVar[str] = "split"

    cuts: tuple[TensorForm, ...]
    label_form: TensorForm | None = None
    order: TurnOrder = "sequential"
    rounds: PositiveInt = 1
    min_nodes: PositiveInt = 1
    batch_size: PositiveInt = 32
    filters: tuple[Filter, ...] = ()
    checkpoint_every: Annotated[int, Interval(ge=1, le=10_000)] = 16
    """Batches of which a side keeps the blobs until it stores its part again."""
    turn_timeout_s: PositiveFloat = 600.0
    """Seconds without progress after which a turn is dropped."""
    seed: int = 0
    is_party: bool = False

    def __post_init__(self) -> None:
        """Check all fields. Raises `InvalidJob`."""
        check_ranges(self)
        if self.order not in get_args(TurnOrder):
            raise InvalidJob(f"split: order is {self.order!r}", hint=f"use {' or '.join(get_args(TurnOrder))}")
        if len(self.cuts) != (2 if self.label_form is None and not self.is_party else 1):
            text = f"{len(self.cuts)} cuts, with labels at the {self.labels}"
            raise InvalidJob(text, code="split.cut", hint="labels at the node need two cuts, at the coordinator one")
        if (largest := max(form.nbytes(self.examples_max) for form in self.cuts)) > BLOB_BYTES_MAX:
            text = f"activations of {largest} bytes for each batch; at most {BLOB_BYTES_MAX}"
            raise InvalidJob(text, code="split.cut", hint="use smaller batches, or a later cut")
        check_filters(self.filters)
        for one in self.filters:
            if not one.suits_models:
                text = f"the filter {one.name} does not suit activations"
                raise InvalidJob(text, code="job.filter", hint="use filters that round each number: half, quantize")

    @property
    def labels(self) -> LabelPlace:
        """The place of the labels."""
        return "node" if self.label_form is None else "coordinator"

    @property
    def examples_max(self) -> int:
        """The examples of the largest batch: a small rest of the data joins the batch before."""
        return self.batch_size + self.batch_size // 2

    @property
    def legs(self) -> int:
        """Pairs of request and answer for each batch."""
        return len(self.cuts)

    def layouts(self, leg: int, direction: Direction, examples: int) -> dict[str, Layout]:
        """Return the layouts of a blob before the filters, by slot."""
        if direction == "answer":
            to_last_layers = leg + 1 < self.legs
            name, form = (ACTIVATIONS, self.cuts[1]) if to_last_layers else (GRADIENT, self.cuts[0])
        else:
            name, form = (GRADIENT, self.cuts[1]) if leg else (ACTIVATIONS, self.cuts[0])
        found = {name: form.layout(name, examples)}
        if self.label_form is not None and direction == "request":
            found[LABELS] = self.label_form.layout(LABELS, examples)
        return found

    def packed_layouts(self, leg: int, direction: Direction, examples: int) -> dict[str, Layout]:
        """Return the layouts of a blob as it is sent. Labels pass no filter."""
        return {
            name: layout if name == LABELS else packed_layout(self.filters, layout)
            for name, layout in self.layouts(leg, direction, examples).items()
        }

    def packed(self, slots: Slots, seed: int) -> Slots:
        """Return a blob as it is sent; `seed` draws the rounding."""
        return {
            name: pack_tree(self.filters, value, seed) if isinstance(value, Tree) and name != LABELS else value
            for name, value in slots.items()
        }

    def opened(self, slots: Slots, leg: int, direction: Direction, examples: int) -> dict[str, Tree]:
        """Return a blob as it was before the filters. Raises `InvalidPayload` for one of another form."""
        wanted, found = self.layouts(leg, direction, examples), dict[str, Tree]()
        if slots.keys() != wanted.keys():
            raise InvalidPayload(f"slots {sorted(slots)} instead of {sorted(wanted)}", code="payload.slots")
        for name, layout in wanted.items():
            tree = tree_slot(slots, name)
            if name == LABELS:
                same_layout(layout, tree.layout)
            found[name] = tree if name == LABELS else unpack_tree(self.filters, tree, layout)
        return found

    def step_bytes(self, examples: int) -> tuple[int, int]:
        """Return the bytes of tensors in one step: (of the requests, of the answers)."""
        requests, answers = (
            sum(
                layout.nbytes
                for leg in range(self.legs)
                for layout in self.packed_layouts(leg, direction, examples).values()
            )
            for direction in get_args(Direction)
        )
        return requests, answers
