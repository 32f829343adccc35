"""Data in every form: each example once per pass, in a task that only the seed decides."""

import random
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from shoal.core.algorithm.learner import TrainConfig
from shoal.core.errors import InvalidJob, LearnerFailed
from shoal.learn import TorchLearner
from shoal.learn.data.batches import BatchOptions, moved, source_of, split
from shoal.learn.data.passes import cuts, training_batches
from shoal.learn.seeds import generator_of

CPU = torch.device("cpu")
X, Y = torch.arange(23.0).unsqueeze(1), torch.arange(23)


class Pairs(Dataset[tuple[Tensor, Tensor]]):
    def __len__(self) -> int:
        return len(Y)

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        return X[at], Y[at]


class Noisy(Pairs):
    """Draws from every generator that data pipelines use."""

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        noise = torch.rand(1) + np.random.rand() + random.random()  # noqa: NPY002
        return X[at] + noise.float(), Y[at] % 2


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(list(zip(X, Y, strict=True)))


class Sized(Stream):
    def __len__(self) -> int:
        return len(Y)


class Table:
    """As pandas and polars have them."""

    def __init__(self, text: bool = False) -> None:
        self.text = text

    def __len__(self) -> int:
        return 2

    def to_numpy(self) -> np.ndarray:
        return np.full((2, 2), "word", object) if self.text else np.zeros((2, 2))


class Words(Dataset[str]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, at: int) -> str:
        return f"word {at}"


FORMS = {
    "tensors": (X, Y),
    "arrays": (X.numpy(), Y.numpy()),
    "tensor dataset": TensorDataset(X, Y),
    "dataset": Pairs(),
    "list": list(zip(X, Y, strict=True)),
    "stream": Stream(),
    "sized stream": Sized(),
    "loader": DataLoader(Pairs(), batch_size=5, shuffle=True),
    "loader of a stream": DataLoader(Stream(), batch_size=5),
    "loader of a sized stream": DataLoader(Sized(), batch_size=5),
}
SHUFFLED = ["tensors", "arrays", "tensor dataset", "dataset", "list"]


def walked(data, config: TrainConfig, **options) -> list[tuple[list[int], float]]:
    """(labels, fraction) of each batch."""
    torch.manual_seed(0)  # the learner seeds torch's own generator as well
    source = source_of(data, BatchOptions(CPU, **options))
    return [
        (batch.data[1].tolist(), done) for batch, done in training_batches(source, config, generator_of(config.seed))
    ]


@pytest.mark.parametrize("form", FORMS)
def test_each_pass_takes_every_example_once(form: str) -> None:
    batches = walked(FORMS[form], TrainConfig(epochs=2, batch_size=5))
    assert [len(labels) for labels, _ in batches] == [5, 5, 5, 5, 3] * 2
    assert Counter(label for labels, _ in batches for label in labels) == dict.fromkeys(range(23), 2)
    fractions = [done for _, done in batches]
    assert fractions == sorted(fractions)


@pytest.mark.parametrize("form", SHUFFLED)
def test_the_seed_decides_the_order(form: str) -> None:
    """And all forms with an index give the same one, so that a data set can change its clothes."""
    first = walked(FORMS[form], TrainConfig(epochs=2, batch_size=5, seed=3))
    assert first == walked(FORMS["tensors"], TrainConfig(epochs=2, batch_size=5, seed=3))
    assert first != walked(FORMS[form], TrainConfig(epochs=2, batch_size=5, seed=4))
    assert first[:5] != first[5:], "each pass has an order of its own"


@pytest.mark.parametrize("form", [form for form in FORMS if "loader" not in form])
def test_batch_size_0_takes_all_at_once(form: str) -> None:
    assert [len(labels) for labels, _ in walked(FORMS[form], TrainConfig(batch_size=0))] == [23]


@pytest.mark.parametrize("form", FORMS)
def test_steps_overrule_epochs(form: str) -> None:
    batches = walked(FORMS[form], TrainConfig(epochs=100, steps=7, batch_size=5))
    assert [done for _, done in batches] == [pytest.approx(step / 7) for step in range(1, 8)]


@pytest.mark.parametrize("form", [*SHUFFLED, "sized stream", "loader", "loader of a sized stream"])
def test_part_of_an_epoch_is_rounded_up(form: str) -> None:
    lengths = [len(labels) for labels, _ in walked(FORMS[form], TrainConfig(epochs=1.3, batch_size=5))]
    assert lengths == [5, 5, 5, 5, 3, 5, 5]
    assert walked(FORMS[form], TrainConfig(epochs=0)) == []


@pytest.mark.parametrize("form", ["stream", "loader of a stream"])
def test_part_of_data_without_a_length_is_refused(form: str) -> None:
    with pytest.raises(LearnerFailed, match="without a length") as told:
        walked(FORMS[form], TrainConfig(epochs=0.5, batch_size=5))
    assert "set steps" in told.value.hint


@given(st.integers(1, 200), st.integers(0, 70), st.booleans())
def test_cuts_cover_everything_once(examples: int, batch_size: int, merge: bool) -> None:
    places = cuts(examples, batch_size, merge_small=merge)
    assert [at for start, stop in places for at in range(start, stop)] == list(range(examples))
    sizes = [stop - start for start, stop in places]
    size = batch_size or examples
    assert all(length == size for length in sizes[:-1])
    if merge and examples >= size:
        assert size <= 2 * sizes[-1] < 3 * size
    else:
        assert sizes[-1] <= size


@pytest.mark.parametrize("resident_bytes_max", [0, 1 << 20])
def test_tensors_that_do_not_fit_the_device_give_the_same(resident_bytes_max: int) -> None:
    assert walked((X, Y), TrainConfig(seed=2), resident_bytes_max=resident_bytes_max) == walked(
        (X, Y), TrainConfig(seed=2)
    )


@pytest.mark.usefixtures("processes")
def test_workers_load_the_same() -> None:
    assert walked(Pairs(), TrainConfig(batch_size=6), workers=1) == walked(Pairs(), TrainConfig(batch_size=6))


def test_a_loaders_own_generator_is_seeded() -> None:
    loader = DataLoader(Pairs(), batch_size=5, shuffle=True, generator=torch.Generator())
    assert walked(loader, TrainConfig(seed=1)) == walked(loader, TrainConfig(seed=1))
    assert walked(loader, TrainConfig(seed=1)) != walked(loader, TrainConfig(seed=2))


@pytest.mark.parametrize(
    "data", [Noisy(), DataLoader(Noisy(), batch_size=4, shuffle=True), DataLoader(Noisy(), 4, num_workers=1)]
)
@pytest.mark.usefixtures("processes")
def test_random_augmentation_repeats_with_the_seed(data) -> None:
    learner = TorchLearner(lambda: nn.Linear(1, 2), data, device="cpu")
    start = learner.init(0)
    weights = []
    for seed in (1, 1, 2):
        torch.rand(1), np.random.rand(), random.random()  # noqa: NPY002 - the world goes on meanwhile
        learner.load(start)
        learner.train(TrainConfig(seed=seed, batch_size=4, lr=0.001))
        weights.append(learner.model()["weight"].tolist())
    assert weights[0] == weights[1] != weights[2]


@pytest.mark.parametrize(
    ("form", "weight"), [*((form, 23) for form in SHUFFLED), ("loader", 23), ("sized stream", 23), ("stream", 46)]
)
def test_the_weight_is_the_number_of_examples(form: str, weight: float) -> None:
    """The examples seen, for data without a length."""
    learner = TorchLearner(lambda: nn.Linear(1, 23), FORMS[form], device="cpu")
    assert learner.train(TrainConfig(epochs=2, batch_size=5, lr=0.0)).weight == weight


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ((X, Y[:5]), r"differ in length: \[5, 23\]"),
        ((X[:0], Y[:0]), "no example"),
        ([], "no example"),
        (iter([1, 2]), "is not training data"),
        (7, "is not training data"),
        ((X, torch.tensor(3)), "differ in length"),
        ("it was the best of times", "text and objects"),
        (["it was", "the best"], "text and objects"),
        ((["it was", "the best"], Y[:2]), "text and objects"),
        ((np.array(["it was", "the best"]), Y[:2]), "text and objects"),
        (Table(), "a Table is not training data"),
        ((Table(), Table(text=True)), "text and objects"),
        ([Table()], "a Table is not training data"),
        ((X, Y.tolist()), r"a tuple is \(inputs, target\).*Tensor, list"),
        (([[0.5], [1.5]], [0, 1]), r"a tuple is \(inputs, target\).*list, list"),
        ((X, None), r"a tuple is \(inputs, target\).*Tensor, NoneType"),
    ],
)
def test_data_that_cannot_be_used_are_refused(data, said: str) -> None:
    with pytest.raises(InvalidJob, match=said) as told:
        source_of(data, BatchOptions(CPU))
    assert told.value.hint or "differ in length" in told.value.message


@pytest.mark.parametrize("data", [Words(), DataLoader(Words(), batch_size=4), [{"text": "it was"}] * 8])
def test_batches_without_a_tensor_are_refused(data) -> None:
    """A dataset that gives text only when it is read."""
    with pytest.raises(LearnerFailed, match="holds no tensor") as told:
        TorchLearner(lambda: nn.Linear(1, 2), data, device="cpu").train(TrainConfig(batch_size=4))
    assert "token ids" in told.value.hint


def test_text_beside_tensors_is_the_models_business() -> None:
    batches = walked([("it was", torch.tensor(1)), ("the best", torch.tensor(0))], TrainConfig(batch_size=1))
    assert sorted(labels for labels, _ in batches) == [[0], [1]]


def test_a_loader_keeps_its_batch_size_and_a_note_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    sizes: list[int] = []

    def learner(loader: DataLoader) -> TorchLearner:
        class Model(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                sizes.append(len(x))
                return super().forward(x)

        return TorchLearner(lambda: Model(1, 23), loader, device="cpu")

    ours = learner(DataLoader(Pairs(), batch_size=5))
    for _ in range(2):
        assert ours.train(TrainConfig(batch_size=32)).weight == 23
    assert sizes == [5, 5, 5, 5, 3] * 2
    assert [entry.getMessage()[:80] for entry in caplog.records] == [
        "the DataLoader's batches of 5 are trained on, and the job's batch_size = 32 has n"[:80]
    ]
    ours.gradient(TrainConfig(steps=1, batch_size=16))
    assert "batch_size = 16 has no effect" in caplog.records[-1].getMessage()


def test_a_loader_with_the_jobs_batch_size_needs_no_note(caplog: pytest.LogCaptureFixture) -> None:
    def learner(loader: DataLoader) -> TorchLearner:
        return TorchLearner(lambda: nn.Linear(1, 23), loader, device="cpu")

    loader = DataLoader(Pairs(), batch_size=5)
    assert learner(loader).train(TrainConfig(batch_size=5)).weight == 23
    assert learner(loader).gradient(TrainConfig(batch_size=32))[0].weight == 23  # of all: in whatever batches
    assert learner(DataLoader(Pairs(), batch_size=23)).train(TrainConfig(batch_size=0)).weight == 23
    own = DataLoader(Pairs(), batch_sampler=[[0, 1, 2], [3]])
    assert learner(own).train(TrainConfig(batch_size=32)).weight == 23
    assert not caplog.records


def test_data_that_run_dry_are_told() -> None:
    class Dry(Stream):
        def __iter__(self):
            return iter([])

    with pytest.raises(LearnerFailed, match="no batch"):
        walked(Dry(), TrainConfig(steps=3))


def test_float64_arrays_become_torchs_default() -> None:
    source = source_of((np.ones((4, 2)), np.zeros(4, np.int32)), BatchOptions(CPU))
    assert [tensor.dtype for tensor in source.tensors] == [torch.float32, torch.int32]


def test_batches_of_other_forms() -> None:
    """A pair or more: inputs and target. Anything else goes whole to the model and to the loss."""
    words = {"length": 4, "ids": torch.ones(3, 5), "more": [torch.ones(3)]}
    assert split((X, X, Y)) == ((X, X), Y)
    assert split(words) == ((words,), words)
    assert split([X]) == ((X,), X)
    assert split(X) == ((X,), X)
    there = moved(words, CPU)
    assert (set(there), there["length"], len(there["more"])) == (set(words), 4, 1)


def test_a_model_may_take_its_batches_whole() -> None:
    class Words(Dataset):
        def __len__(self) -> int:
            return 20

        def __getitem__(self, at: int) -> dict[str, Tensor]:
            return {"ids": torch.tensor([at % 4, (at + 1) % 4]), "next": torch.tensor((at + 2) % 4)}

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out = nn.Embedding(4, 8), nn.Linear(16, 4)

        def forward(self, batch):
            return self.out(self.embed(batch["ids"]).flatten(1))

    def loss(output, batch):
        return nn.functional.cross_entropy(output, batch["next"])

    learner = TorchLearner(Model, Words(), Words(), loss=loss, metrics={}, device="cpu")
    learner.init(0)
    losses = [learner.train(TrainConfig(5, batch_size=4, lr=0.5)).metrics["train/loss"] for _ in range(3)]
    assert losses[-1] < losses[0]
    assert learner.evaluate()["eval/examples"] == 20
