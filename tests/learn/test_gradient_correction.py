"""Corrections that are computed on the parameters' device: the numbers of `correct(weights, gradient)`, and no copies
that outlive a training."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from shoal.core.algorithm.algorithm import LocalResult, LocalTask
from shoal.core.algorithm.correction import Correction
from shoal.core.algorithm.learner import TrainConfig
from shoal.core.errors import Cancelled, InvalidPayload, Refused
from shoal.core.model.tree import Tree, digest, to_float, zeros
from shoal.learn import TorchConfig, TorchLearner
from shoal.learn.training import corrections
from shoal.learn.training.corrections import TensorCorrector, TreeCorrector
from shoal.learn.training.weights import Weights
from shoal.plugins import algorithms

BUDGET = TrainConfig(epochs=2, batch_size=8, lr=0.1, seed=3)
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


class Network(nn.Module):
    """Layers of which one is frozen, one has sparse gradients, one has none, and one stays on the node."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 16, sparse=True)
        self.norm = nn.BatchNorm1d(16)
        self.frozen = nn.Linear(16, 16)
        self.frozen.requires_grad_(requires_grad=False)
        self.mine = nn.Linear(16, 16)
        self.unused = nn.Linear(16, 3)
        self.last = nn.Linear(16, 4)
        self.scalar = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Any:
        hidden = self.norm(self.table(x)) * self.scalar
        return self.last(torch.relu(self.mine(self.frozen(hidden))))


def stays(name: str, tensor: Tensor) -> bool:
    return not name.startswith("mine")


def learner(kind: str = "float32", **more: Any) -> TorchLearner:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randint(20, (40,), generator=generator), torch.randint(4, (40,), generator=generator)
    config = TorchConfig(travels=stays, **more.pop("config", {}))
    return TorchLearner(lambda: Network().to(TYPES[kind]), (x, y), device="cpu", config=config, **more)


def drawn(like: Tree, seed: int, size: float) -> Tree:
    """Return a tree of weights near zero, without statistics and whole numbers."""
    draw, blank = np.random.default_rng(seed), zeros(like.layout)
    arrays = {
        leaf.name: (size * draw.standard_normal(leaf.shape)).astype(np.float32).astype(blank[leaf.name].dtype)
        if like.layout.is_weight(leaf)
        else blank[leaf.name]
        for leaf in like.layout.leaves
    }
    dtypes = {leaf.name: leaf.dtype for leaf in like.layout.leaves}
    return Tree.of(arrays, dtypes, like.layout.base_model, like.layout.statistics)


def correction(kind: str, start: Tree) -> Correction:
    """Return the correction that each algorithm makes."""
    anchors = {"fedprox": start, "admm": drawn(start, 5, 0.5)}
    if kind == "scaffold":
        return Correction(offset=drawn(start, 6, 0.1), averages=True)
    if kind == "all":
        return Correction(offset=drawn(start, 6, 0.1), pull=0.3, anchor=anchors["admm"], averages=True)
    return Correction(pull=0.3, anchor=anchors[kind])


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let blocks end within tensors."""
    monkeypatch.setattr(corrections, "CPU_BLOCK_ELEMENTS", 100)


def trained(made: TorchLearner, correct: Any) -> dict[str, Tensor]:
    made.init(2)
    made.train(BUDGET, correct=correct)
    return {name: tensor.detach().clone() for name, tensor in made.module.state_dict().items()}


def adam(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.Adam([p for p in parameters if p.numel() != 20 * 16], lr=lr / 10)


@pytest.mark.parametrize("numbers", TYPES)
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, adam])
@pytest.mark.parametrize("kind", ["fedprox", "admm", "scaffold", "all"])
def test_a_training_gives_the_bits_of_a_correction_of_trees(kind: str, optimizer: Any, numbers: str) -> None:
    """With a clipped norm, so that the order of both is the same too."""
    one, other = (learner(numbers, optimizer=optimizer, config={"clip_norm": 2.0}) for _ in range(2))
    on_tensors, on_trees = (correction(kind, made.init(2)) for made in (one, other))
    found = trained(one, on_tensors)
    expected = trained(other, on_trees.__call__)
    assert {name for name in found if not torch.equal(found[name], expected[name])} == set()
    assert on_tensors.steps == on_trees.steps == 10
    one.init(2)
    start = one.module.state_dict()
    assert torch.equal(start["unused.weight"], found["unused.weight"]) == (kind == "fedprox"), "no gradient is zero"
    assert torch.equal(start["frozen.weight"], found["frozen.weight"])
    means = on_tensors.take_mean(), on_trees.take_mean()
    if on_tensors.averages:
        assert means[0] is not None
        assert means[1] is not None
        if numbers == "float64":  # a mean times its steps is rounded there
            np.testing.assert_array_max_ulp(means[0]["last.weight"], means[1]["last.weight"], maxulp=1)
        else:
            assert digest(means[0]) == digest(means[1])
        assert np.any(means[0]["last.weight"])


def gradients_of(weights: Weights, seed: int) -> Iterator[Tensor | None]:
    generator = torch.Generator().manual_seed(seed)
    for name, p in weights.trainable().items():
        made = torch.randn(p.shape, generator=generator).to(p.dtype)
        yield None if name.startswith("unused") else made


def test_half_precision_differs_by_one_rounding_at_most() -> None:
    """numpy rounds float64 to float16 at once, torch by way of float32."""
    made = Network().half()
    weights = Weights(made)
    start = weights.save()
    correct = correction("all", start)
    other = correction("all", start)
    ours = TensorCorrector(weights, correct).corrected(gradients_of(weights, 1))
    theirs = TreeCorrector(weights, other).corrected(gradients_of(weights, 1))
    for mine, yours in zip(ours, theirs, strict=True):
        places = [one.reshape(-1).view(torch.int16).int() for one in (mine, yours)]
        assert mine.dtype == torch.float16
        assert int((places[0] - places[1]).abs().max()) <= 1


def test_a_private_tensor_is_not_corrected() -> None:
    made = learner()
    correct = correction("scaffold", made.init(2))
    given = [None if one is None else one.clone() for one in gradients_of(made.weights, 1)]
    found = TensorCorrector(made.weights, correct).corrected(gradients_of(made.weights, 1))
    for name, before, after in zip(made.weights.trainable(), given, found, strict=True):
        assert before is None or torch.equal(before, after) == name.startswith("mine"), name


def test_a_correction_of_another_layout_is_refused() -> None:
    weights = Weights(nn.Linear(3, 2))
    with pytest.raises(InvalidPayload, match="weight is F32"):
        TensorCorrector(weights, Correction(pull=0.1, anchor=Weights(nn.Linear(4, 2)).save()))


def test_a_gradient_that_is_not_finite_is_refused_by_scaffold() -> None:
    made = learner(loss=lambda output, target: nn.functional.cross_entropy(output, target) * float("inf"))
    with pytest.raises(Refused, match="a float64 sum holds magnitudes"):
        made.train(BUDGET, correct=correction("scaffold", made.init(2)))


def test_a_layer_that_is_trained_later_is_corrected_from_then_on() -> None:
    """A callback of a Trainer may let more layers train."""
    made = Network()
    weights, correct = Weights(made), correction("all", Weights(made).save())
    corrector = TensorCorrector(weights, correct)
    corrector.corrected(gradients_of(weights, 1))
    made.frozen.requires_grad_()
    later = list(gradients_of(weights, 2))
    before = later[list(weights.trainable()).index("frozen.bias")]
    assert before is not None
    before = before.clone()
    corrector.corrected(later)
    corrector.report()
    mean = correct.take_mean()
    assert mean is not None
    np.testing.assert_allclose(mean["frozen.bias"], before.numpy() / 2, rtol=1e-6)


def copies() -> int:
    """Return the float64 tensors that are alive: sums and workspaces."""
    gc.collect()
    return sum(type(one) is Tensor and one.dtype == torch.float64 for one in gc.get_objects())


@pytest.mark.parametrize("fails", [False, True])
def test_the_copies_are_freed_at_the_end_and_after_a_failure(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[TensorCorrector] = []
    original = TensorCorrector.__init__

    def noted(self: TensorCorrector, weights: Weights, correct: Correction) -> None:
        original(self, weights, correct)
        made.append(self)

    monkeypatch.setattr(TensorCorrector, "__init__", noted)
    one = learner()
    correct = correction("all", one.init(2))
    before, during = copies(), []

    def progress(fraction: float) -> None:
        during.append(copies())
        if fails:
            raise Cancelled("superseded")

    try:
        one.train(TrainConfig(steps=2, batch_size=8), correct=correct, progress=progress)
    except Cancelled:
        assert fails
    assert min(during) > before
    assert len(made) == 1, "the correction was computed on tensors"
    assert copies() == before
    assert correct.steps == (0 if fails else 2)


@pytest.mark.parametrize("name", ["fedprox", "admm", "scaffold"])
def test_an_algorithm_corrects_without_trees(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(TreeCorrector, "corrected")
    one = learner()
    model = one.init(0)
    slots: Any = {"model": model} | ({"control": zeros(model.layout)} if name == "scaffold" else {})
    algorithm = algorithms()[name](epochs=1, batch_size=8)
    result = algorithm.local(one, LocalTask((1, 1), "train", 0, 1, slots), {})
    assert isinstance(result, LocalResult)
    assert to_float(one.model().stored("last.weight").reshape(-1).view(np.uint8), "F32").any()
