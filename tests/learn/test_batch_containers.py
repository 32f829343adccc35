"""Batches of every container reach the model as they are, and are counted by their examples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import DataLoader, Dataset, TensorDataset

from shoal.core.algorithm.learner import TrainConfig
from shoal.core.errors import InvalidJob, LearnerFailed
from shoal.learn import TorchConfig, TorchLearner
from shoal.learn.data.batches import BatchOptions, moved, source_of

CPU = torch.device("cpu")
ONCE = TrainConfig(batch_size=4)


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Item:
    x: Tensor
    kind: str


class Graph:
    """An object that moves itself, as graphs of torch_geometric do."""

    def __init__(self, x: Tensor) -> None:
        self.x, self.device = x, "nowhere"

    def to(self, device: torch.device) -> Graph:
        made = Graph(self.x)
        made.device = device.type
        return made


def test_containers_keep_their_types() -> None:
    ones = torch.ones(2)
    for batch in (Pair(ones, ones), [ones, [ones]], (ones, "text"), {"x": ones, "n": 3}, Item(ones, "a")):
        assert type(moved(batch, CPU)) is type(batch)
    packed = pack_sequence([torch.ones(3, 1), torch.ones(2, 1)])
    assert isinstance(moved(packed, CPU), PackedSequence)
    assert moved([Graph(ones)], CPU)[0].device == "cpu"
    assert moved(Item(ones, "a"), CPU).kind == "a"


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(1, 2), nn.Linear(2, 2)

    def forward(self, x: Any) -> Tensor:
        return self.out(self.lstm(x)[1][0][0])


def sequences(number: int, length: int = 3) -> list[tuple[Tensor, int]]:
    return [(torch.full((length, 1), float(i)), i % 2) for i in range(number)]


def time_first(examples: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    return torch.stack([x for x, _ in examples], 1), torch.tensor([y for _, y in examples])


def packed(examples: list[tuple[Tensor, int]]) -> tuple[PackedSequence, Tensor]:
    return pack_sequence([x for x, _ in examples]), torch.tensor([y for _, y in examples])


@pytest.mark.parametrize("collate", [time_first, packed])
def test_a_loaders_examples_are_those_that_it_collates(collate: Any) -> None:
    """Not the length of a tensor, whose first dimension may be time."""
    loader = DataLoader(sequences(10), batch_size=4, collate_fn=collate)
    learner = TorchLearner(Reader, loader, loader, device="cpu")
    assert [batch.examples for batch in learner.train_data.epoch(4, None)] == [4, 4, 2]
    assert learner.train(ONCE).weight == 10
    assert learner.gradient(ONCE)[0].weight == 10
    assert learner.evaluate()["eval/examples"] == 10


def test_batches_that_the_data_make_are_counted_by_the_user() -> None:
    made = [time_first(sequences(4)), time_first(sequences(3))]

    def learner(**options: Any) -> TorchLearner:
        return TorchLearner(Reader, DataLoader(made, batch_size=None), device="cpu", config=TorchConfig(**options))

    with pytest.raises(LearnerFailed, match="the number of examples in a batch is unknown") as caught:
        learner().train(ONCE)
    assert "examples=" in caught.value.hint
    assert learner(examples=lambda batch: len(batch[1])).train(ONCE).weight == 7


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(lambda x: (x,), id="tuple"),
        pytest.param(lambda x: x, id="tensor"),
        list,
        TensorDataset,
        pytest.param(lambda x: DataLoader(TensorDataset(x), batch_size=4), id="loader"),
    ],
)
def test_without_a_target_the_input_is_the_target(data: Any) -> None:
    learner = TorchLearner(lambda: nn.Linear(3, 3), data(torch.randn(8, 3)), loss=nn.MSELoss(), device="cpu")
    assert learner.train(ONCE).weight == 8


class ByIndex:
    """Neither a `Dataset` of torch nor a sequence: a length, and examples by index."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, at: int) -> tuple[Tensor, int]:
        return torch.full((1,), float(at)), at % 2


def test_what_a_loader_takes_by_index_is_a_data_set() -> None:
    assert TorchLearner(lambda: nn.Linear(1, 2), ByIndex(), device="cpu").train(ONCE).weight == 6


def test_a_node_without_test_examples_does_not_evaluate() -> None:
    x, y = torch.randn(4, 1), torch.tensor([0, 1, 0, 1])
    few = DataLoader(TensorDataset(x, y), batch_size=8, drop_last=True)
    for test in ((x[:0], y[:0]), TensorDataset(x[:0], y[:0]), [], few):
        assert TorchLearner(lambda: nn.Linear(1, 2), (x, y), test, device="cpu").evaluate() == {}


def test_a_loader_without_a_batch_is_refused() -> None:
    """It would train nothing, and its model count with the weight of all examples."""
    loader = DataLoader(ByIndex(), batch_size=8, drop_last=True)
    with pytest.raises(InvalidJob, match="gives no batch of its 6 examples") as caught:
        TorchLearner(lambda: nn.Linear(1, 2), loader, device="cpu")
    assert "drop_last" in caught.value.hint


def test_a_batch_of_one_under_batch_norm_names_the_remedy() -> None:
    loader = DataLoader(ByIndex(), batch_size=5)
    learner = TorchLearner(lambda: nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 2)), loader, device="cpu")
    with pytest.raises(LearnerFailed, match="more than 1 value per channel") as caught:
        learner.train(TrainConfig(batch_size=5))
    assert "drop_last" in caught.value.hint


class Noisy(Dataset[Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, at: int) -> Tensor:
        return torch.randn(2)


@pytest.mark.usefixtures("processes")
def test_workers_that_persist_draw_by_the_seed() -> None:
    loader = DataLoader(Noisy(), batch_size=2, num_workers=1, persistent_workers=True)
    learner = TorchLearner(lambda: nn.Linear(2, 2), loader, loss=nn.MSELoss(), device="cpu")
    weights = []
    for _ in range(2):
        learner.load(learner.init(1))
        learner.train(TrainConfig(seed=3, batch_size=2))
        weights.append(learner.model()["weight"].tolist())
    assert weights[0] == weights[1]


def test_a_memory_map_is_read_batch_by_batch(tmp_path: Path) -> None:
    """Its numbers are those of the same array in memory; a map for reading alone cannot be written to."""
    values, labels = np.arange(12, dtype=np.float64).reshape(6, 2), np.arange(6) % 2
    values.tofile(tmp_path / "x")
    mapped = np.memmap(tmp_path / "x", np.float64, "r", shape=(6, 2))
    config = TrainConfig(batch_size=4, lr=0.01, seed=2)
    models = []
    for x in (values, mapped):
        learner = TorchLearner(lambda: nn.Linear(2, 2), (x, labels), device="cpu")
        learner.load(learner.init(0))
        assert learner.train(config).weight == 6
        models.append(learner.model()["weight"].tolist())
    assert models[0] == models[1]
    source: Any = source_of((mapped, labels), BatchOptions(CPU))
    assert source.take(slice(0, 2))[0].is_contiguous()
    assert not any(isinstance(part, Tensor) and len(part) == 6 and part.ndim == 2 for part in source._parts)


def test_arrays_are_not_copied() -> None:
    x = np.ones((6, 2), np.float32)
    source: Any = source_of((x, np.zeros(6, np.int64)), BatchOptions(CPU))
    assert source.tensors[0].numpy().base is x or np.shares_memory(source.tensors[0].numpy(), x)
