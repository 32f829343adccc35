"""The mean of low-rank adapters' products, against the whole matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import shoal
from shoal.algorithms.flexlora import FlexLoRA, adapter_pairs, mean_product
from shoal.core.algorithm.algorithm import Algorithm, Update
from shoal.core.errors import InvalidPayload
from shoal.core.model.aggregation import Totals
from shoal.core.model.tree import Tree, norm, sub
from shoal.jobs.spec import parse_job
from tests.algorithms.softmax import Adapted, Softmax, unbalanced

RNG = np.random.default_rng(3)


def drawn(nodes: int, out: int, rank: int, wide: int) -> list[tuple[float, Any, Any]]:
    shares = RNG.dirichlet(np.ones(nodes))
    return [(float(share), RNG.standard_normal((out, rank)), RNG.standard_normal((rank, wide))) for share in shares]


SHAPES = [(1, 20, 4, 30), (3, 20, 4, 30), (9, 10, 3, 12), (2, 2, 5, 9)]


@pytest.mark.parametrize(("nodes", "out", "rank", "wide"), SHAPES)
def test_the_product_is_the_best_of_its_rank(nodes: int, out: int, rank: int, wide: int) -> None:
    """Eckart and Young: what is lost are the singular values beyond the rank."""
    weighted = drawn(nodes, out, rank, wide)
    mean = sum(share * b @ a for share, b, a in weighted)
    b, a = mean_product(weighted)
    assert (b.shape, a.shape) == ((out, rank), (rank, wide))
    lost = np.linalg.svd(mean, compute_uv=False)[rank:]
    np.testing.assert_allclose(np.linalg.norm(mean - b @ a), np.sqrt(np.square(lost).sum()), atol=1e-12)


def test_rows_of_a_keep_their_mean_length_and_no_direction_dies() -> None:
    weighted = [(1.0, np.zeros((20, 4)), RNG.standard_normal((4, 30)))]
    b, a = mean_product(weighted)
    assert not b.any()
    lengths = np.linalg.norm(a, axis=1)
    np.testing.assert_allclose(lengths, np.sqrt(np.square(weighted[0][2]).sum() / 4))


def test_kernels_are_taken_as_matrices() -> None:
    """PEFT's adapter of a convolution: A of rank × in × 3 × 3, B of out × rank × 1 × 1."""
    (share, b, a), *_ = drawn(1, 8, 2, 27)
    made_b, made_a = mean_product([(share, b.reshape(8, 2, 1, 1), a.reshape(2, 3, 3, 3))])
    assert (made_b.shape, made_a.shape) == ((8, 2, 1, 1), (2, 3, 3, 3))
    np.testing.assert_allclose(made_b[..., 0, 0] @ made_a.reshape(2, -1), share * b @ a)


def adapter(rank: int, b: float | None = None, zeroed: int = 0, kind: type = np.float32) -> Tree:
    """An adapter of 10 × 64; its last `zeroed` ranks are those of a node that trains fewer."""
    left = RNG.standard_normal((10, rank)) if b is None else np.full((10, rank), b)
    right = RNG.standard_normal((rank, 64))
    left[:, rank - zeroed :], right[rank - zeroed :] = 0.0, 0.0
    tensors = {"x.lora_A.default.weight": right, "x.lora_B.default.weight": left, "head": RNG.standard_normal(5)}
    return Tree.of({name: values.astype(kind) for name, values in tensors.items()}, base_model="ba5e" * 16)


def stepped(base: Tree, models: list[tuple[float, Tree]]) -> Tree:
    algorithm, totals = FlexLoRA(), Totals()
    for number, (weight, model) in enumerate(models):
        update = sub(model, base)
        totals = algorithm.fold(totals, Update(f"n{number}", 0, weight, {"model": update}, norm(update)), 1.0)
    made = algorithm.step({"model": base}, totals)["model"]
    assert isinstance(made, Tree)
    return made


def product(model: Tree) -> Any:
    return model["x.lora_B.default.weight"].astype(float) @ model["x.lora_A.default.weight"].astype(float)


def test_nodes_of_unequal_ranks_count_by_their_products() -> None:
    """A node that trains two of four ranks has zeros in the others."""
    models = [(1.0, adapter(4, zeroed=2)), (3.0, adapter(4)), (0.0, adapter(4))]
    made = stepped(adapter(4), models)
    mean = 0.25 * product(models[0][1]) + 0.75 * product(models[1][1])
    u, s, v = np.linalg.svd(mean)
    np.testing.assert_allclose(product(made), u[:, :4] * s[:4] @ v[:4], atol=1e-5)
    heads = 0.25 * models[0][1]["head"] + 0.75 * models[1][1]["head"]
    np.testing.assert_allclose(made["head"], heads, atol=1e-6)
    assert made.layout == models[0][1].layout


def test_few_ranks_lose_nothing() -> None:
    """Two nodes of rank two in a model of rank four: the mean of their products has rank four."""
    models = [(2.0, adapter(4, zeroed=2)), (3.0, adapter(4, zeroed=2))]
    made = stepped(adapter(4), models)
    np.testing.assert_allclose(product(made), 0.4 * product(models[0][1]) + 0.6 * product(models[1][1]), atol=1e-5)


def test_federated_averaging_is_another_mean() -> None:
    """The bias that flexlora is for: the mean of the factors is not that of the products."""
    models = [(1.0, adapter(4)), (1.0, adapter(4))]
    b, a = (sum(model[f"x.lora_{name}.default.weight"].astype(float) for _, model in models) / 2 for name in ("B", "A"))
    mean = sum(product(model) for _, model in models) / 2
    plain, ours = np.linalg.norm(mean - b @ a), np.linalg.norm(mean - product(stepped(adapter(4), models)))
    assert ours < 0.75 * plain


def test_a_frozen_a_makes_the_plain_mean_exact() -> None:
    """FFA-LoRA (Sun et al. 2024): with one A on all nodes, mean(B) A is the mean of the products."""
    a, name = RNG.standard_normal((4, 64)), "x.lora_B.default.weight"
    base, *models = (Tree.of({name: RNG.standard_normal((10, 4))}, base_model="ba5e" * 16) for _ in range(4))
    weights, algorithm, totals = (1.0, 2.0, 5.0), Algorithm(), Totals()
    for node, (weight, model) in enumerate(zip(weights, models, strict=True)):
        update = sub(model, base)
        totals = algorithm.fold(totals, Update(f"n{node}", 0, weight, {"model": update}, norm(update)), 1.0)
    made = algorithm.step({"model": base}, totals)["model"]
    assert isinstance(made, Tree)
    mean = sum(weight * model[name] @ a for weight, model in zip(weights, models, strict=True)) / sum(weights)
    np.testing.assert_allclose(made[name] @ a, mean)


def test_half_precision_and_a_diverged_model() -> None:
    made = stepped(adapter(2, kind=np.float16), [(1.0, adapter(2, kind=np.float16))])
    assert made["head"].dtype == np.float16
    base = adapter(2)
    broken = Tree.of({name: np.full_like(base[name], np.inf) for name in base}, base_model="ba5e" * 16)
    algorithm, totals = FlexLoRA(), Totals()
    totals = algorithm.fold(totals, Update("n", 0, 1.0, {"model": sub(base, base)}, 0.0), 1.0)
    found = algorithm.step({"model": broken}, totals)["model"]
    assert isinstance(found, Tree)
    assert np.isinf(found["head"]).all()


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["w", "b"], "has no adapters whose products"),
        (["q.lora_A.default.weight", "w"], "q.lora_A.default.weight has no q.lora_B.default.weight beside it"),
        (["q.lora_B.default.weight"], "has no adapters whose products"),
    ],
)
def test_models_without_pairs_are_refused_by_name(names: list[str], text: str) -> None:
    with pytest.raises(InvalidPayload, match=f"flexlora: .*{text}"):
        FlexLoRA().init(Tree.of({name: np.zeros((2, 2), np.float32) for name in names}))


def test_names_of_all_kinds_of_adapters_are_found() -> None:
    names = ["h.lora_a.weight", "h.lora_b.weight", "e.lora_embedding_A.default", "e.lora_embedding_B.default"]
    tree = Tree.of({name: np.zeros((2, 2), np.float32) for name in names})
    assert adapter_pairs(tree.layout) == [(names[2], names[3]), (names[0], names[1])]


def job(name: str, **more: Any) -> shoal.JobSpec:
    algorithm = {"name": name, "lr": 0.5, "epochs": 5}
    return parse_job({"name": "adapters", "rounds": 6, "seed": 2, "algorithm": algorithm, **more})


def test_a_job_learns_from_nodes_with_unlike_classes() -> None:
    """Each node has some classes only, so that adapters come to differ."""
    nodes = [sorted_by_class(Adapted, part) for part in range(3)]
    test = unbalanced(True, Adapted)[0]
    accuracy = {}
    for name in ("flexlora", "fedavg"):
        test.load(shoal.simulate(job(name), nodes).model)
        accuracy[name] = test.evaluate()["eval/accuracy"]
    assert accuracy["flexlora"] > accuracy["fedavg"] > 0.3


def sorted_by_class(kind: type[Softmax], part: int) -> Softmax:
    x, y = (np.concatenate(values) for values in zip(*((one.x, one.y) for one in unbalanced()), strict=True))
    mine = y % 3 == part
    return kind(x[mine], y[mine])
