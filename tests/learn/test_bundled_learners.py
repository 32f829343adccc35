"""The ready learners, the examples, and what importing costs."""

import gzip
import hashlib
import importlib
import inspect
import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

from shoal.algorithms.fedavg import FedAvg
from shoal.core.algorithm.learner import TrainConfig
from shoal.core.errors import InvalidJob
from shoal.learn import TorchConfig, TorchLearner, digits, load_learner, mnist, models
from shoal.learn.data import bundled, datasets
from tests.conventions.sources import ROOT
from tests.learn.federation import versions
from tests.learn.test_data import idx_bytes

SIZES = {"mlp": 4_810, "cnn": 10_370, "bn": 4_938}


def test_the_digits_are_those_of_the_source() -> None:
    """The SHA-256 is that of the numbers that scikit-learn 1.9's `load_digits` gives."""
    x, y = bundled.digits()
    assert (x.shape, x.dtype, y.dtype) == ((1797, 64), np.uint8, np.uint8)
    assert np.bincount(y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    found = hashlib.sha256(x.tobytes() + y.tobytes()).hexdigest()
    assert found == "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"


@pytest.mark.parametrize("split", ["iid", "dirichlet:0.5", "shards:2"])
def test_the_digits_are_divided_without_overlap(split: str) -> None:
    """Each digit is with one node, for training or for testing, or is held out for all."""
    seen: list[bytes] = []
    for part in range(4):
        learner = digits.learner(part, 4, split=split)
        for source in (learner.train_data, learner.test_data):
            seen += [row.numpy().tobytes() for row in source.tensors[0]]
    seen += [row.numpy().tobytes() for row in digits.held_out().test_data.tensors[0]]
    x, _ = digits.digits()
    assert sorted(seen) == sorted(row.numpy().tobytes() for row in x)
    assert len(digits.held_out().test_data.tensors[0]) == 359


def test_nodes_that_are_compared_are_measured_on_the_same_digits() -> None:
    learners = [digits.compared(part, 3, split="iid") for part in range(3)]
    common = digits.held_out().test_data.tensors
    assert all(bool((one.test_data.tensors[0] == common[0]).all()) for one in learners)
    x, _ = digits.digits()
    assert sum(len(one.train_data.tensors[0]) for one in learners) + len(common[0]) == len(x)


@pytest.mark.parametrize("model", models.DIGITS)
def test_the_digits_models_learn(model: str) -> None:
    learner = digits.learner(0, 1, split="iid", model=model)
    assert sum(p.numel() for p in learner.module.parameters()) == SIZES[model]
    learner.init(0)
    learner.train(TrainConfig(epochs=8, batch_size=16, lr=0.2))
    assert learner.evaluate()["eval/accuracy"] > 0.9


def test_options_come_as_texts() -> None:
    options = {"part": "1", "parts": "3", "split": "shards:3", "seed": "5", "model": "bn", "test_fraction": "0.5"}
    learner = load_learner("shoal.learn.digits:learner", options)
    assert abs(learner.train_data.examples - learner.test_data.examples) <= 1
    assert digits.learner(1, 3, test_fraction=0).test_data is None
    for wrong in ({"part": "4"}, {"model": "vgg"}, {"split": "even"}, {"parts": "0"}, {"test_fraction": "1"}):
        with pytest.raises(InvalidJob):
            load_learner("shoal.learn.digits:learner", wrong)


@pytest.fixture
def small_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of MNIST's shape with 200 + 50 images, in place of the known one."""
    rng = np.random.default_rng(0)
    arrays = [
        rng.integers(0, 256, (200, 28, 28), dtype=np.uint8),
        np.arange(200, dtype=np.uint8) % 10,
        rng.integers(0, 256, (50, 28, 28), dtype=np.uint8),
        np.arange(50, dtype=np.uint8) % 10,
    ]
    parts = []
    for known, array in zip(datasets.DATA_SETS["mnist"].parts, arrays, strict=True):
        raw = idx_bytes(array)
        (tmp_path / f"{known.name}.gz").write_bytes(gzip.compress(raw))
        parts.append(datasets.DataFile(known.name, len(raw), hashlib.sha256(raw).hexdigest()))
    monkeypatch.setitem(datasets.DATA_SETS, "mnist", datasets.DataSet("small", "none", tuple(parts), ()))
    return tmp_path


@pytest.mark.parametrize(("model", "size"), [("2nn", 199_210), ("cnn", 1_663_370)])
def test_mnists_models_are_the_papers(small_mnist: Path, model: str, size: int) -> None:
    options = {"part": "3", "parts": "10", "split": "shards:2", "model": model, "folder": str(small_mnist)}
    learner = load_learner("shoal.learn.mnist:learner", options)
    assert sum(p.numel() for p in learner.module.parameters()) == size
    assert (learner.train_data.examples, learner.test_data.examples) == (18, 2)
    assert learner.train(TrainConfig(batch_size=10)).weight == 18
    judge = mnist.held_out(model, str(small_mnist))
    assert judge.evaluate()["eval/examples"] == 50
    x = judge.test_data.tensors[0]
    assert x.shape == (50, 784)
    assert x.min() == pytest.approx(-0.1307 / 0.3081, rel=1e-5)
    assert x.max() == pytest.approx((1 - 0.1307) / 0.3081, rel=1e-5)


def test_mnist_comes_as_a_stream(small_mnist: Path) -> None:
    """The division is that of the plain learner; only the labels change, and only from the drift on."""
    options = {"part": "3", "parts": "10", "split": "shards:2", "folder": str(small_mnist)}
    plain = load_learner("shoal.learn.mnist:learner", options)
    stream = load_learner("shoal.learn.mnist:stream", {**options, "drift": "permute@4"})
    assert stream.train_data.examples == 18
    was, same, other = (
        next(source.sequence(5, position, lambda: None)).data
        for source, position in ((plain.train_data, 3), (stream.train_data, 3), (stream.train_data, 4))
    )
    assert all(torch.equal(a, b) for a, b in zip(was, same, strict=True))
    unlike = next(plain.train_data.sequence(5, 4, lambda: None)).data
    assert torch.equal(unlike[0], other[0])
    assert not (unlike[1] == other[1]).any()


EXAMPLES = {"learner.py": ("eval/accuracy", 0.9, 1.0), "loader.py": ("eval/error", 0.0, 0.55)}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_train(name: str) -> None:
    """Four nodes, ten rounds, as a person would start them."""
    metric, low, high = EXAMPLES[name]
    learners = [load_learner(f"{ROOT}/examples/pytorch/{name}:learner", {"part": str(part)}) for part in range(4)]
    algorithm = FedAvg(epochs=2, batch_size=16, lr=0.1 if name == "learner.py" else 0.005)
    rounds = versions(algorithm, learners[0].init(0), learners)
    slots = [next(rounds) for _ in range(10)][-1]
    for learner in learners:
        learner.load(slots["model"])
    assert low <= np.mean([learner.evaluate()[metric] for learner in learners]) <= high


LIGHT = """
import json, sys
import shoal.learn, shoal.learn.loading, shoal.learn.data.partition, shoal.learn.data.datasets
dir(shoal.learn)
shoal.learn.ArrayLearner
print(json.dumps(sorted({"torch"} & set(sys.modules))))
shoal.learn.TorchLearner
print("torch" in sys.modules)
"""


def test_importing_is_light() -> None:
    done = subprocess.run([sys.executable, "-c", LIGHT], cwd=ROOT, capture_output=True, text=True, check=True)
    light, heavy = done.stdout.splitlines()
    assert json.loads(light) == []
    assert heavy == "True"


def test_what_the_package_offers() -> None:
    import shoal.learn

    learners = [
        "ArrayConfig",
        "ArrayLearner",
        "FullyShard",
        "GrowingLearner",
        "LearnerCallback",
        "Pipeline",
        "SklearnLearner",
        "TensorParallel",
        "TorchConfig",
    ]
    assert shoal.learn.__all__ == [*learners, "TorchLearner", "load_learner"]
    assert set(shoal.learn.__all__) <= set(dir(shoal.learn))
    with pytest.raises(AttributeError, match="no attribute 'Leaner'"):
        shoal.learn.Leaner  # noqa: B018


def test_the_benchmark_runs(
    small_mnist: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On noise it reaches nothing, and says so."""
    module = importlib.import_module("benchmarks.fedavg_mnist")
    options = ["--clients", "10", "--rounds", "2", "--split", "shards:2", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["fedavg_mnist.py", "--data", str(small_mnist), *options])
    assert module.main() == 1
    said = capsys.readouterr().out
    assert "round    2  accuracy" in said
    assert "97.0%: not reached" in said
    assert "E=1 B=10: 664" in said
    assert "2 one by one" in said
    monkeypatch.setattr(sys, "argv", ["fedavg_mnist.py", "--data", str(small_mnist / "nothing")])
    assert module.main() == 1
    assert "no train-images" in capsys.readouterr().err


def test_every_parameter_is_documented() -> None:
    text = (ROOT / "docs" / "how-to" / "learner.md").read_text()
    names = [*inspect.signature(TorchLearner.__init__).parameters, *(field.name for field in fields(TorchConfig))]
    assert [name for name in names if f"| `{name}` |" not in text] == ["self"]
