"""Own functions over arrays: the batches, seeds and weights of TorchLearner, without torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from shoal.core.algorithm.learner import TrainConfig
from shoal.core.errors import Cancelled, InvalidJob, InvalidPayload, LearnerFailed
from shoal.core.model.tree import Tree, add, digest
from shoal.learn import ArrayConfig, ArrayLearner, TorchLearner
from shoal.learn.arrays.array_batches import ArraySource, generator_of, permutation
from tests.learn.numpy_models import Layer, array_learners, data, foreign_module, gradient, loop, parameters

BUDGETS = [
    TrainConfig(epochs=2, batch_size=32, lr=0.3, seed=7),
    TrainConfig(epochs=1.5, batch_size=7, seed=2**40 + 1),
    TrainConfig(steps=9, batch_size=16, batch_index=5, sequence_seed=11),
    TrainConfig(epochs=1, batch_size=0, seed=3),
    TrainConfig(epochs=0, batch_size=32),
]


def twin(count: int = 100) -> tuple[ArrayLearner, TorchLearner]:
    """The same model and data by numpy and by torch, with the same weights."""
    x, y = data()
    train, test = (x[:count], y[:count]), (x[-200:], y[-200:])
    own = ArrayLearner(parameters, train, test, gradient=gradient)

    def network() -> nn.Module:
        module = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
        with torch.no_grad():
            for layer, given in zip((module[0], module[2]), parameters(1)["layers"], strict=True):
                layer.weight.copy_(torch.tensor(given.w.T))
                layer.bias.copy_(torch.tensor(given.b))
        return module

    own.init(1)
    return own, TorchLearner(network, train, test, device="cpu")


def alike(own: Tree, theirs: Tree, tolerance: float = 2e-6) -> None:
    for place, layer in ((0, 0), (1, 2)):
        assert np.allclose(own[f"layers.{place}.w"], theirs[f"{layer}.weight"].T, atol=tolerance)
        assert np.allclose(own[f"layers.{place}.b"], theirs[f"{layer}.bias"], atol=tolerance)


@pytest.mark.parametrize("config", BUDGETS)
def test_it_trains_as_a_torch_learner_does(config: TrainConfig) -> None:
    """The same batches in the same order: the same model up to rounding, the same weight, the same loss."""
    own, theirs = twin()
    one, other = own.train(config), theirs.train(config)
    alike(own.model(), theirs.model())
    assert one.weight == other.weight
    assert one.metrics == pytest.approx(other.metrics, rel=1e-5)
    assert own.evaluate()["eval/loss"] == pytest.approx(theirs.evaluate()["eval/loss"], rel=1e-5)


@pytest.mark.parametrize("config", [TrainConfig(batch_size=30), TrainConfig(batch_size=16, steps=3, seed=4)])
def test_its_gradient_is_that_of_a_torch_learner(config: TrainConfig) -> None:
    own, theirs = twin()
    (one, slope), (other, expected) = own.gradient(config), theirs.gradient(config)
    alike(slope, expected)
    assert (one.weight, one.metrics) == (other.weight, pytest.approx(other.metrics, rel=1e-5))
    assert slope["steps"] == 3, "a whole number comes as its value"


def test_it_shuffles_as_torch_does() -> None:
    for seed, examples in ((0, 1), (5, 2), (2**63 - 1, 100), (2**40 + 7, 1797)):
        theirs, own = torch.Generator().manual_seed(seed), generator_of(seed)
        for _ in range(2):
            assert permutation(examples, own).tolist() == torch.randperm(examples, generator=theirs).tolist()


def test_a_loop_of_ones_own_gets_the_same_batches() -> None:
    """It may write into what it is given, and what it does with the batches is all that is different."""
    for config in BUDGETS[:3]:
        (by_loop, _, _), (by_gradient, _, _) = array_learners(loop=loop), array_learners()
        trees = []
        for learner in (by_loop, by_gradient):
            start = learner.init(4)
            before = digest(start)
            done = learner.train(config)
            assert digest(start) == before
            trees.append((learner.model(), done))
        assert trees[0][1].weight == trees[1][1].weight
        assert trees[0][1].metrics["train/loss"] == pytest.approx(trees[1][1].metrics["train/loss"], rel=0.05)
        assert all(np.allclose(trees[0][0][name], trees[1][0][name], atol=1e-5) for name in trees[0][0])


def test_a_loop_may_have_data_of_its_own() -> None:
    def own(p: Any, batches: Iterator[Any], config: TrainConfig) -> Any:
        assert list(batches) == []
        return {"w": p["w"] + np.float32(config.epochs)}

    learner = ArrayLearner(lambda seed: {"w": np.zeros(2, np.float32)}, loop=own, examples=12)
    assert learner.train(TrainConfig(epochs=2)).weight == 12
    assert learner.model()["w"].tolist() == [2.0, 2.0]
    assert (learner.applies_corrections, learner.gives_gradients, learner.evaluate()) == (False, False, {})
    with pytest.raises(LearnerFailed, match="gives no gradients"):
        learner.gradient(TrainConfig())


def test_corrections_reach_every_step() -> None:
    learner = array_learners()[0]
    start, seen = learner.init(0), []

    def undo(weights: Tree, slope: Tree) -> Tree:
        seen.append(weights)
        return add(slope, slope, -1.0)

    learner.train(TrainConfig(batch_size=25), correct=undo)
    assert [digest(one) for one in seen] == [digest(start)] * 4 == [digest(learner.model())] * 4


def test_names_come_from_the_containers() -> None:
    layout = array_learners()[0].layout
    names = {"layers.0.w", "layers.0.b", "layers.1.w", "layers.1.b", "scale.0", "steps"}
    assert set(layout.index) == names
    alone = ArrayLearner(lambda seed: np.zeros(3), (np.zeros((2, 3)), np.zeros(2)), gradient=gradient)
    assert alone.layout.shown == {"parameters": "F64[3]"}


def test_parameters_come_back_as_they_were() -> None:
    learner = array_learners()[0]
    learner.init(5)
    found, expected = learner.parameters(), parameters(5)
    assert isinstance(found["layers"][0], Layer)
    assert type(found["scale"]) is tuple
    assert type(found["steps"]) is np.int64
    assert found["nothing"] is None
    assert np.array_equal(found["layers"][1].w, expected["layers"][1].w)
    found["layers"][1].w[:] = 0
    assert learner.model()["layers.1.w"].any()
    with pytest.raises(InvalidPayload):
        learner.parameters(Tree.of({"w": np.zeros(2)}))


def test_arrays_of_another_library_come_back_as_such() -> None:
    """Parameters, batches and results, by a function of the library that made them."""
    library = foreign_module()
    try:
        seen: set[type] = set()

        def slope(p: Any, batch: Any) -> Any:
            seen.update(map(type, (p["w"], *batch)))
            error = batch[0] @ p["w"] - batch[1]
            return np.mean(np.asarray(error) ** 2), {"w": library.array(np.asarray(batch[0]).T @ np.asarray(error))}

        x = np.arange(12.0, dtype=np.float32).reshape(6, 2)
        learner = ArrayLearner(lambda seed: {"w": library.array(np.zeros(2, np.float32))}, (x, x[:, 0]), gradient=slope)
        learner.train(TrainConfig(steps=2, batch_size=2, lr=0.001))
        assert seen == {library.array}
        assert type(learner.parameters()["w"]) is library.array
        assert learner.model()["w"].any()
    finally:
        del sys.modules["foreign_arrays"]


def test_a_type_that_nothing_makes_needs_a_function() -> None:
    class Odd:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return np.zeros(2, np.float32)

    given = {"loop": lambda p, batches, config: p, "examples": 1}
    with pytest.raises(InvalidJob, match=r"w is a .*Odd, and nothing in its module") as caught:
        ArrayLearner(lambda seed: {"w": Odd()}, **given)
    assert "convert=" in caught.value.hint
    learner = ArrayLearner(lambda seed: {"w": Odd()}, config=ArrayConfig(convert=lambda array: Odd()), **given)
    assert type(learner.parameters()["w"]) is Odd


def test_arrays_that_only_speak_dlpack_are_read() -> None:
    class Packed:
        def __init__(self, values: Any) -> None:
            self.values = np.asarray(values)

        def __dlpack__(self, **more: Any) -> Any:
            return self.values.__dlpack__(**more)

        def __dlpack_device__(self) -> Any:
            return self.values.__dlpack_device__()

    learner = ArrayLearner(
        lambda seed: {"w": Packed(np.full(2, 5.0))},
        loop=lambda p, b, c: p,
        examples=1,
        config=ArrayConfig(convert=Packed),
    )
    assert learner.init(0)["w"].tolist() == [5.0, 5.0]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"w": object()}, "w is a object, which is not an array of numbers"),
        ({"layers": [{"w": "deep"}]}, r"layers\.0\.w is a <U4 array, which"),
        ({"w": np.zeros(2, np.complex64)}, "w is a complex64 array, which"),
        ({"w": np.zeros(2, np.uint16)}, "w: type uint16 cannot be sent"),
        ({"a.b": np.zeros(1), "a": {"b": np.zeros(1)}}, "two parameters have one name"),
        ({}, "there are no parameters"),
    ],
)
def test_what_is_no_parameter_is_refused_by_name(made: Any, message: str) -> None:
    with pytest.raises(InvalidJob, match=message):
        ArrayLearner(lambda seed: made, loop=lambda p, batches, config: p, examples=1)


def simple(**more: Any) -> ArrayLearner:
    return ArrayLearner(lambda seed: {"w": np.zeros((2, 3), np.float32), "b": np.zeros(3, np.float32)}, **more)


W, B = np.zeros((2, 3), np.float32), np.zeros(3, np.float32)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"w": W.T, "b": B}, r"the loop gave w as float32\[3, 2\]; it is F32\[2, 3\]"),
        ({"w": W.astype(np.float64), "b": B}, r"the loop gave w as float64\[2, 3\]; it is F32"),
        ({"w": W}, "another structure: b, which is missing"),
        ({"w": W, "b": B, "c": B}, "another structure: c, which is not a parameter"),
        ({"w": W, "b": None}, "another structure: b, which is missing"),
        ({"w": W, "b": [B]}, "another structure"),
        (None, "another structure"),
        ({"w": W, "b": "text"}, "the loop: b is a <U4 array"),
    ],
)
def test_a_loop_that_changes_the_parameters_form_fails_by_name(result: Any, message: str) -> None:
    learner = simple(loop=lambda p, batches, config: result, examples=1)
    before = digest(learner.model())
    with pytest.raises(LearnerFailed, match=message):
        learner.train(TrainConfig())
    assert digest(learner.model()) == before


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ((0.0, {"w": W.T, "b": B}), r"gradient gave the gradient of w the shape \[3, 2\]"),
        ((0.0, {"w": W}), "another structure: b, which is missing"),
        ((0.0, {"w": W, "b": B, "z": B}), "another structure: z, which is not a parameter"),
        ({"w": W, "b": B}, "gradient gave no pair"),
        (("high", {"w": W, "b": B}), "training failed.*could not convert"),
    ],
)
def test_a_gradient_of_another_form_fails_by_name(result: Any, message: str) -> None:
    learner = simple(train=(np.zeros((4, 2)), np.zeros(4)), gradient=lambda p, batch: result)
    with pytest.raises(LearnerFailed, match=message):
        learner.train(TrainConfig())


def test_an_error_of_the_users_function_names_its_line() -> None:
    def faulty(p: Any, batch: Any) -> Any:
        p["w"] += 1

    with pytest.raises(LearnerFailed, match=r"training failed in .*test_array_learner\.py, line \d+: .*read-only"):
        simple(train=(np.zeros((4, 2)), np.zeros(4)), gradient=faulty).train(TrainConfig())


def test_what_diverged_is_passed_on_as_it_is() -> None:
    learner = array_learners()[0]
    learner.init(0)
    with np.errstate(all="ignore"):
        done = learner.train(TrainConfig(3, batch_size=10, lr=1e30))
        assert not np.isfinite(done.metrics["train/loss"])
        assert not np.isfinite(learner.model()["layers.0.w"]).all()
        assert not np.isfinite(learner.evaluate()["eval/loss"])


@pytest.mark.parametrize("more", [{}, {"loop": loop}])
def test_cancelling_leaves_the_weights(more: dict[str, Any]) -> None:
    learner = array_learners(**more)[0]
    before = digest(learner.init(1))

    def stop(fraction: float) -> None:
        if fraction > 0.3:
            raise Cancelled("superseded")

    with pytest.raises(Cancelled):
        learner.train(TrainConfig(4, batch_size=16), progress=stop)
    assert digest(learner.model()) == before


def test_randomness_follows_the_tasks_seed() -> None:
    def noisy(p: Any, batch: Any) -> Any:
        return 0.0, {"w": np.random.rand(2, 3), "b": None}  # noqa: NPY002

    learner, found = simple(train=(np.zeros((4, 2)), np.zeros(4)), gradient=noisy), []
    for seed in (1, 1, 2):
        learner.init(0)
        learner.train(TrainConfig(seed=seed))
        found.append(digest(learner.model()))
    assert found[0] == found[1] != found[2]


DATA: list[tuple[Callable[[Any, Any], Any], type]] = [
    (lambda x, y: (x, y), tuple),
    (lambda x, y: {"x": x, "y": y}, dict),
    (lambda x, y: list(zip(x, y, strict=True)), tuple),
    (lambda x, y: [{"x": a, "y": b} for a, b in zip(x, y, strict=True)], dict),
]


@pytest.mark.parametrize(("form", "kind"), DATA, ids=["tuple", "dictionary", "tuples", "dictionaries"])
def test_data_may_be_arrays_or_examples(form: Callable[[Any, Any], Any], kind: type) -> None:
    x, y = data()
    source, plain = ArraySource(form(x[:10], y[:10])), ArraySource((x[:10], y[:10]))
    for batch, expected in zip(source.epoch(4, generator_of(1)), plain.epoch(4, generator_of(1)), strict=True):
        assert type(batch) is kind
        found = batch.values() if isinstance(batch, dict) else batch
        assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
    assert (source.examples, source.steps(4)) == (10, 3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (7, "int is not training data"),
        ((np.zeros(3), np.zeros(4)), "differ in length"),
        ((np.zeros((0, 2)), np.zeros(0)), "no example"),
        ([], "no example"),
        (("a", "b"), "text and objects"),
        ((np.zeros(2), [1, 2]), "a tuple is"),
    ],
)
def test_unusable_data_are_refused(given: Any, message: str) -> None:
    with pytest.raises(InvalidJob, match=message):
        simple(train=given, gradient=gradient)


def test_something_must_say_how_to_train_and_on_what() -> None:
    with pytest.raises(InvalidJob, match="nothing says how to train"):
        simple(train=(W, W))
    with pytest.raises(InvalidJob, match="no training data"):
        simple(gradient=gradient)


def test_a_node_without_test_examples_does_not_evaluate() -> None:
    x, y = data()
    for test in ((x[:0], y[:0]), {"x": x[:0], "y": y[:0]}, []):
        assert ArrayLearner(parameters, (x, y), test, gradient=gradient).evaluate() == {}
