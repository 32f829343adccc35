"""Low-rank adapters (LoRA) averaged by their products.

An adapter of rank r changes a frozen weight W by a product, W + s B A, with A: r × in and B: out × r (Hu et al.: "LoRA:
Low-Rank Adaptation of Large Language Models", ICLR 2022, equation 3). Federated averaging of A and B gives
mean(B) mean(A), which is not the mean of the products. This algorithm computes the mean of the products, and its best
approximation of rank r (Bai, Chen, Qian, Yao, Li: "Federated Fine-tuning of Large Language Models under Heterogeneous
Tasks and Client Resources", NeurIPS 2024: FlexLoRA):

    U S V' = sum_k p_k B_k A_k,   B = U_r S_r / c,   A = c V_r'      p_k: a node's share of the examples

U_r, S_r and V_r are of the r greatest singular values, so no B A of rank r is nearer in the Frobenius norm (Eckart,
Young 1936). c keeps the mean length of the rows of A; it is not part of the paper, which leaves the split open. The
mean is never made as a matrix of out × in numbers: B_1 … B_n stand side by side, A_1 … A_n one below the other, and
only the triangular factors of the two are multiplied, at most nr × nr numbers.

All other tensors are averaged by examples. The hub holds the adapters of a round's nodes until the version closes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from shoal.core.algorithm.algorithm import Algorithm, Update, tree_slot
from shoal.core.errors import InvalidPayload
from shoal.core.model.aggregation import Totals
from shoal.core.model.tree import Array, Layout, Slots, Tree
from shoal.core.protocol.message import ScheduleFamily

Wide = npt.NDArray[np.float64]

UPDATE, WEIGHT = "update.", "weight."
"""Begin the slots of a node's update and of its weight in a round's totals."""

FACTORS = (("lora_A", "lora_B"), ("lora_embedding_A", "lora_embedding_B"), ("lora_a", "lora_b"))
"""Parts of the names of A and B, of PEFT and of torchtune."""


@dataclass(frozen=True)
class FlexLoRA(Algorithm):
    """The mean of adapters' products, cut to their rank. Nodes may train fewer ranks than the model has."""

    name: ClassVar[str] = "flexlora"
    title: ClassVar[str] = "LoRA averaged by products (Bai et al. 2024)"
    schedules: ClassVar[tuple[ScheduleFamily, ...]] = ("synchronous",)
    mixed_slots: ClassVar[tuple[str, ...]] = ()

    def init(self, model: Tree) -> Slots:
        """Return the hub's slots. Raises `InvalidPayload` for a model without adapters."""
        adapter_pairs(model.layout)
        return {"model": model}

    def fold(self, totals: Totals, update: Update, discount: float) -> Totals:
        """Add an update, and keep it by itself too: products cannot be taken of a sum."""
        model = update.slots["model"]
        slots: Slots = {"model": model, UPDATE + update.node: model, WEIGHT + update.node: 1.0}
        totals.add(slots, update.weight * discount, update.norm)
        return totals

    def step(self, slots: Slots, totals: Totals) -> Slots:
        """Return the mean of all tensors, with the adapters replaced by those of the mean product."""
        base, names = tree_slot(slots, "model"), sorted(slot.removeprefix(WEIGHT) for slot in totals.numbers)
        weights = {name: totals.numbers[WEIGHT + name] for name in names if totals.numbers[WEIGHT + name]}
        shares = [float(weight / totals.weight) for weight in weights.values()]
        updates = [totals.mean(UPDATE + name) for name in weights]
        mean = totals.mean_onto("model", base)
        made: dict[str, Array] = {}
        for a, b in adapter_pairs(base.layout):
            products = [
                (share, _wide(base, b) + _wide(update, b), _wide(base, a) + _wide(update, a))
                for share, update in zip(shares, updates, strict=True)
            ]
            if all(
                np.isfinite(factor).all() for _, *factors in products for factor in factors
            ):  # else the mean shows it
                made[b], made[a] = mean_product(products)
        return {**slots, "model": _replaced(mean, made)}


def adapter_pairs(layout: Layout) -> list[tuple[str, str]]:
    """Return the names of A and B of each adapter. Raises `InvalidPayload` where there is none, or one without B."""
    pairs = []
    for leaf in layout.leaves:
        for first, second in FACTORS:
            if first not in leaf.name.split("."):
                continue
            other = ".".join(second if part == first else part for part in leaf.name.split("."))
            if other not in layout.index:
                hint = 'a model with A frozen (FFA-LoRA) needs no flexlora: use algorithm = { name = "fedavg" }'
                raise InvalidPayload(f"flexlora: {leaf.name} has no {other} beside it", hint=hint)
            pairs.append((leaf.name, other))
    if not pairs:
        hint = "name the factors as PEFT does, …lora_A… and …lora_B…, and let both be trained"
        raise InvalidPayload("flexlora: the model has no adapters whose products could be averaged", hint=hint)
    return pairs


def mean_product(weighted: Sequence[tuple[float, Wide, Wide]]) -> tuple[Wide, Wide]:
    """Return B `[out, rank]` and A `[rank, in]` whose product is nearest to `sum share * B_k A_k`.

    `weighted`: (share, B_k, A_k). Axes beyond the first of A, and after the second of B, are taken as one. Signs are
    chosen so that the greatest number of each row of A is positive: a decomposition leaves them open.
    """
    _, first_b, first_a = weighted[0]
    rank = first_a.shape[0]
    left = np.concatenate([np.sqrt(share) * b.reshape(-1, rank) for share, b, _ in weighted], axis=1)
    right = np.concatenate([np.sqrt(share) * a.reshape(rank, -1) for share, _, a in weighted])
    basis_b, triangle_b = np.linalg.qr(left)
    basis_a, triangle_a = np.linalg.qr(right.T)
    u, s, v = np.linalg.svd(triangle_b @ triangle_a.T)
    kept = min(rank, len(s))
    b, a = np.zeros((len(left), rank)), np.zeros((rank, right.shape[1]))
    b[:, :kept] = basis_b @ (u[:, :kept] * s[:kept])
    a[:kept] = v[:kept] @ basis_a.T
    signs = np.where(np.take_along_axis(a, np.abs(a).argmax(1)[:, None], 1) < 0, -1.0, 1.0)
    length = np.sqrt(np.square(right).sum() / rank) or 1.0  # of the rows of A, on the mean
    return (b * signs.T / length).reshape(first_b.shape), (a * signs * length).reshape(first_a.shape)


def _wide(tree: Tree, name: str) -> Wide:
    return tree[name].astype(np.float64)


def _replaced(tree: Tree, made: dict[str, Array]) -> Tree:
    """Return a tree with other values in some of its tensors, rounded to their types."""
    dtypes = {leaf.name: leaf.dtype for leaf in tree.layout.leaves}
    arrays = {name: tree.stored(name) for name in tree}
    for name, values in made.items():
        wide = values.astype(np.float32 if dtypes[name] == "BF16" else arrays[name].dtype)
        arrays[name] = wide
    return Tree.of(arrays, dtypes, tree.layout.base_model, tree.layout.statistics)
