"""A model split over shards: the same bits as in one piece, or the same but for rounding, by what a method says."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import shoal
from shoal.algorithms.largebatch import LargeBatch
from shoal.algorithms.lbfgs import LBFGS
from shoal.core.algorithm.algorithm import Algorithm, Update, tree_slot
from shoal.core.algorithm.server_optimizer import Adagrad, Adam, Momentum, UpdateRule, Yogi, optimizer_slots, take_step
from shoal.core.algorithm.sharding import ShardedTotals, cut_tree, join_parts, split_layout
from shoal.core.errors import Refused
from shoal.core.model.aggregation import SumKind, Totals
from shoal.core.model.tree import Slots, Tree, digest, norm, scale
from shoal.core.model.vector_parts import Part, together, whole
from shoal.core.protocol.message import NodeInfo
from shoal.jobs.spec import check_job, parse_job
from shoal.plugins import algorithms
from shoal.sim.network.faults import Faults
from tests.algorithms.softmax import unbalanced

ABLE = sorted(name for name, kind in algorithms().items() if kind.shardable == "weights")


def model(seed: int, wide: int = 70_001) -> Tree:
    """Tensors of five types: larger than a block, a number, an empty one, a counter, a statistic."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape)

    return Tree.of(
        {
            "a.weight": normal(3, 7).astype(np.float32),
            "b.weight": normal(wide).astype(np.float32),
            "c.half": normal(11).astype(np.float16),
            "d.bits": (normal(13).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16),
            "e.double": np.array(normal()[()]),
            "f.empty": np.zeros((0, 4), np.float32),
            "n.running_var": np.abs(normal(5)).astype(np.float32),
            "n.seen": np.array(seed, np.int64),
        },
        {"d.bits": "BF16"},
        statistics=["n.running_var"],
    )


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64])
def test_parts_make_the_whole_again_and_are_about_equal(count: int) -> None:
    tree = model(1)
    spans = split_layout(tree.layout, count)
    parts = [cut_tree(tree, one) for one in spans]
    assert digest(join_parts(tree.layout, parts, spans)) == digest(tree)
    assert sum(part.layout.elements for part in parts) == tree.layout.elements
    sizes = [part.layout.elements for part in parts]
    assert max(sizes) - min(sizes) <= len(tree.layout.segments), "one number for each type and kind"
    assert all(
        np.array_equal(part["b.weight"], tree["b.weight"][slice(*one["b.weight"])])
        for part, one in zip(parts, spans, strict=True)
        if "b.weight" in one
    )


@dataclass(frozen=True)
class Stepped(Algorithm):
    """Any rule of a server's optimizer."""

    name: ClassVar[str] = "stepped"
    kind: str = "adam"

    @property
    def rule(self) -> UpdateRule:
        return {"momentum": Momentum(0.7), "adam": Adam(0.03), "yogi": Yogi(0.03), "adagrad": Adagrad(0.1)}[self.kind]

    def init(self, model: Tree) -> Slots:
        return {**optimizer_slots(self.rule, model), "turn": 0.0}

    def step(self, slots: Slots, totals: Totals) -> Slots:
        turn = slots["turn"]
        assert isinstance(turn, float)
        base = slots["model"]
        assert isinstance(base, Tree)
        return {**take_step(self.rule, slots, totals.mean_onto("model", base)), "turn": turn + totals.count}


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as threads:
        yield threads


def three_versions(algorithm: Algorithm, sums: SumKind, count: int, each: Any = map) -> Slots:
    """Two updates for each."""
    slots = algorithm.init(model(0))
    for version in range(3):
        base = slots["model"]
        assert isinstance(base, Tree)
        totals = ShardedTotals(sums, base.layout, count, each) if count > 1 else Totals(sums)
        for node in range(2):
            update = model(10 * version + node)
            told = Update(f"n{node}", version, 3.0 + node, {"model": update}, norm(update))
            totals = algorithm.fold(totals, told, 1.0)  # type: ignore[assignment]
        assert totals.weight == 7
        assert totals.count == 2
        slots = totals.step(algorithm, slots) if isinstance(totals, ShardedTotals) else algorithm.step(slots, totals)
    return slots


def bits(slots: Slots) -> dict[str, str | float]:
    return {name: digest(value) if isinstance(value, Tree) else value for name, value in slots.items()}


@pytest.mark.parametrize("kind", ["momentum", "adam", "yogi", "adagrad"])
@pytest.mark.parametrize("sums", ["float64", "fixed"])
def test_optimizers_come_to_the_same_bits(kind: str, sums: SumKind, pool: ThreadPoolExecutor) -> None:
    algorithm = Stepped(kind=kind)
    whole = bits(three_versions(algorithm, sums, 1))
    for count in (2, 5):
        assert bits(three_versions(algorithm, sums, count)) == whole
    assert bits(three_versions(algorithm, sums, 5, pool.map)) == whole, "in any order"


def test_what_is_refused_leaves_all_shards_as_they_were() -> None:
    tree = model(1)
    sharded = ShardedTotals("fixed", tree.layout, 4)
    sharded.add({"model": tree}, 1.0, norm(tree))
    with pytest.raises(Refused, match="holds magnitudes"):
        sharded.add({"model": tree}, 1.0, 2.0**30)
    with pytest.raises(Refused, match="cannot be averaged"):
        sharded.add({"model": tree, "turn": float("nan")}, 1.0, norm(tree))
    assert (sharded.weight, sharded.count) == (1, 1)
    assert [(shard.totals.weight, shard.totals.count) for shard in sharded.shards] == [(1, 1)] * 4
    assert sharded.squared_mean_norm("model") == pytest.approx(sum(norm_of_floats(tree)))


def norm_of_floats(tree: Tree) -> list[float]:
    plain = [tree[name].astype(np.float64) for name in ("a.weight", "b.weight", "c.half", "e.double")]
    wide = (tree.stored("d.bits").astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return [float((values**2).sum()) for values in (*plain, wide)]


@pytest.mark.parametrize("name", ABLE)
def test_a_job_comes_to_the_same_bits(name: str) -> None:
    """Every method that says so, in simulation, with crashes of the coordinator."""
    schedule = (
        {"name": "rounds", "min_nodes": 3}
        if name not in ("asgd", "downpour", "fedasync", "fedbuff")
        else {"name": "buffer", "size": 2, "min_nodes": 3}
    )
    faults = Faults(until_s=6.0, coordinator_crashes=2)
    made = []
    for shards in (1, 3):
        job = parse_job(
            {"name": "s", "rounds": 4, "seed": 2, "algorithm": {"name": name}, "schedule": schedule, "shards": shards}
        )
        result = shoal.simulate(job, unbalanced(), faults=faults, node_info={"node-0": NodeInfo(("phone",))})
        made.append((digest(result.model), [version.why for version in result.versions]))
    assert made[0] == made[1]


@pytest.mark.parametrize(
    "algorithm",
    [
        LBFGS(weight_decay=0.01, history_size=3),
        LargeBatch(lars_coefficient=0.01, weight_decay=0.1, lr=5.0),
        LargeBatch(weight_decay=0.1),
    ],
)
def test_methods_that_need_sums_over_the_model_come_to_the_same(
    algorithm: LBFGS | LargeBatch, pool: ThreadPoolExecutor
) -> None:
    """Five steps over matrices and biases; cut tensors keep their dimensions."""
    whole = descended(algorithm, 1)
    moved = np.linalg.norm(whole["a.weight"] - matrices(0)["a.weight"])
    for count, each in ((2, map), (5, map), (5, pool.map)):
        parted = descended(algorithm, count, each)
        for name in whole:
            np.testing.assert_allclose(parted[name], whole[name], atol=1e-4 * moved)


def matrices(seed: int) -> Tree:
    rng = np.random.default_rng(seed)
    shapes = {"a.weight": (30, 7), "b.bias": (7,), "c.weight": (3, 5, 11)}
    return Tree.of({name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()})


def descended(algorithm: LBFGS | LargeBatch, count: int, each: Any = map) -> Tree:
    """The model after five versions; the loss is the sum of sqrt(1 + w^2)."""
    slots = algorithm.init(matrices(0))
    for version in range(5):
        at = tree_slot(algorithm.task_slots(slots, "a", "train"), "model")
        gradient = Tree.of({name: at[name] / np.sqrt(1 + at[name] ** 2) for name in at})
        loss = sum(float(np.sqrt(1 + at[name] ** 2).sum()) for name in at)
        told: Slots = {"gradient": gradient, "loss": loss}
        if isinstance(algorithm, LargeBatch):
            told = {"model": scale(gradient, -1.0)}
        totals = ShardedTotals("float64", at.layout, count, each) if count > 1 else Totals()
        algorithm.fold(totals, Update("a", version, 1.0, told, norm(gradient)), 1.0)
        slots = totals.step(algorithm, slots) if isinstance(totals, ShardedTotals) else algorithm.step(slots, totals)
    return tree_slot(slots, "model")


def adding(*shares: float) -> Part[float]:
    """Each number and the sum that comes back for it, in one."""
    found = 0.0
    for share in shares:
        found = 10 * found + (yield {"one": share, f"own {share}": share})["one"]
    return found


def test_parts_hear_the_sums_of_what_they_tell() -> None:
    assert together([adding(1, 2), adding(3, 4), adding(0, 0)]) == [46, 46, 46]
    assert whole(adding(0.1, 0.2)) == 10 * 0.1 + 0.2
    with pytest.raises(AssertionError, match="some parts have ended"):
        together([adding(1), adding(1, 2)])


def test_who_can_be_split() -> None:
    assert [
        *("admm", "asgd", "downpour", "fedadagrad", "fedadam", "fedasync", "fedavg", "fedavgm", "fedbuff", "fedprox"),
        *("fedsgd", "fedyogi", "periodic", "scaffold"),
    ] == ABLE
    assert [name for name, kind in algorithms().items() if kind.shardable == "sums"] == ["largebatch", "lbfgs"]


@pytest.mark.parametrize(
    ("job", "text", "hint"),
    [
        ({"algorithm": {"name": "codistillation"}}, "does not say that it can work on parts of a model", "lbfgs"),
        (
            {"algorithm": {"name": "dynamic"}, "schedule": {"name": "divergence"}},
            "dynamic does not say",
            "leave shards out",
        ),
        ({"algorithm": {"name": "periodic"}, "schedule": {"name": "periodic"}}, "measures the model as a", "buffer"),
    ],
)
def test_a_method_that_does_not_say_so_is_refused(job: dict[str, Any], text: str, hint: str) -> None:
    mistakes = check_job({"name": "x", "shards": 2, **job})
    assert all(mistake.place == ("shards",) for mistake in mistakes)
    assert text in mistakes[0].text
    assert hint in mistakes[0].hint
    assert not check_job({"name": "x", **job})


@pytest.mark.parametrize("shards", [0, -1, 257, "two"])
def test_numbers_of_shards_that_make_no_sense(shards: Any) -> None:
    (mistake,) = check_job({"name": "x", "shards": shards})
    assert mistake.place == ("shards",)
