"""Sequences and streams: batch number t is the same whenever, wherever and after whatever it is asked for."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

from shoal.core.algorithm.learner import TrainConfig, no_progress
from shoal.core.errors import Cancelled, InvalidJob, LearnerFailed
from shoal.core.model.tree import digest
from shoal.learn import TorchLearner, digits, load_learner, models
from shoal.learn.data.batches import BatchOptions, source_of
from shoal.learn.data.passes import cuts, seed_of, training_batches
from shoal.learn.data.stream import Drift, NewClasses, Pace, Permute, Rotate, Stream, drifts_of, permutation, rotated
from shoal.learn.seeds import generator_of
from shoal.learn.stacked.stacked_training import train_stacked
from tests.conventions.sources import ROOT
from tests.learn.test_batches import FORMS, SHUFFLED

CPU = torch.device("cpu")
X, Y = torch.arange(40.0).reshape(40, 1), torch.arange(40) % 10


def source(data, **options):
    return source_of(data, BatchOptions(CPU, **options))


def batches(data, position: int, steps: int, size: int = 4, seed: int = 0, **options) -> list[tuple[list[float], ...]]:
    """([first feature], [label]) of each mini-batch."""
    config = TrainConfig(steps=steps, batch_size=size, batch_index=position, seed=seed)
    found = training_batches(source(data, **options), config, generator_of(seed))
    return [(x.flatten(1)[:, 0].tolist(), y.tolist()) for (x, y) in (batch.data for batch, _ in found)]


def stream(*drifts: Drift, **more) -> Stream:
    return Stream((X, Y), drifts, **more)


SEQUENCES = {
    "tensors": (X, Y),
    "examples": list(zip(X, Y, strict=True)),
    "stream": stream(),
    "drawn": stream(passes=False),
    "drifting": stream(Permute(at=7), NewClasses(at=13, classes=(8, 9)), Permute(at=20, seed=1), seed=3),
}


# --------------------------------------------------------------------------------------------------------- sequences
@pytest.mark.parametrize("form", SEQUENCES)
@given(position=st.integers(0, 60), steps=st.integers(1, 25), size=st.integers(0, 11), merge=st.booleans())
def test_a_batch_is_its_number(form: str, position: int, steps: int, size: int, merge: bool) -> None:
    """Asked for one by one, backwards and in another seed's training, the batches are those of one long walk."""
    data, options = SEQUENCES[form], {"merge_small": merge}
    walk = batches(data, position, steps, size, seed=1, **options)
    singly = [batches(data, t, 1, size, seed=2, **options)[0] for t in reversed(range(position, position + steps))]
    assert walk == singly[::-1]


@pytest.mark.parametrize("form", ["tensors", "examples", "stream"])
@given(size=st.integers(1, 41), passes=st.integers(1, 3), skipped=st.integers(0, 2))
def test_each_pass_of_a_sequence_takes_every_example_once(form: str, size: int, passes: int, skipped: int) -> None:
    length = len(cuts(40, size))
    walk = batches(SEQUENCES[form], skipped * length, passes * length, size)
    for number in range(passes):
        own = walk[number * length : (number + 1) * length]
        assert sorted(value for values, _ in own for value in values) == X.flatten().tolist()
    if passes > 1 and size < 40:
        assert walk[:length] != walk[length : 2 * length]


@pytest.mark.usefixtures("processes")
def test_a_stream_without_drift_is_the_data_sets_own_sequence() -> None:
    assert batches(SEQUENCES["tensors"], 5, 30) == batches(SEQUENCES["stream"], 5, 30)
    assert batches(SEQUENCES["tensors"], 5, 30) == batches(SEQUENCES["examples"], 5, 30, workers=1)
    assert batches(SEQUENCES["stream"], 5, 30) != batches(stream(seed=1), 5, 30)


def test_epochs_count_passes_of_a_sequence() -> None:
    config = TrainConfig(epochs=1.5, batch_size=4, batch_index=3)
    assert len(list(training_batches(source((X, Y)), config, generator_of(0)))) == 15
    with pytest.raises(LearnerFailed, match="no passes"):
        list(training_batches(source(stream(passes=False)), config, generator_of(0)))


@pytest.mark.parametrize("form", sorted(set(FORMS) - set(SHUFFLED)))
def test_what_can_only_be_walked_through_has_no_sequence(form: str) -> None:
    with pytest.raises(LearnerFailed, match="only be walked through"):
        batches(FORMS[form], 0, 1)


NEW_PROCESS = """
import torch
from shoal.learn.data.batches import BatchOptions, source_of
from tests.learn.test_stream import SEQUENCES, batches
print({form: batches(data, 11, 12) for form, data in sorted(SEQUENCES.items())})
"""


def test_another_process_has_the_same_batches() -> None:
    done = subprocess.run([sys.executable, "-c", NEW_PROCESS], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str({form: batches(data, 11, 12) for form, data in sorted(SEQUENCES.items())})


@given(first=st.lists(st.integers(0, 2**40), min_size=1, max_size=4), again=st.lists(st.integers(0, 2**40), min_size=1))
def test_seeds_of_several_numbers_differ(first: list[int], again: list[int]) -> None:
    # SeedSequence takes trailing zeros for nothing; ours always end in the number that runs.
    assert (seed_of(*first, 1) == seed_of(*again, 1)) == (first == again)


# ------------------------------------------------------------------------------------------------------------ drifts
def test_labels_change_places_from_the_batch_on() -> None:
    plain, drifting = batches((X, Y), 0, 12), batches(stream(Permute(at=7)), 0, 12)
    names = permutation(10, 1.0, 0).tolist()
    for number, ((values, labels), (same, changed)) in enumerate(zip(plain, drifting, strict=True)):
        assert same == values
        assert changed == (labels if number < 7 else [names[label] for label in labels])


@given(classes=st.integers(2, 50), share=st.floats(0.01, 1), seed=st.integers(0, 99))
def test_a_permutation_moves_its_share_of_the_classes(classes: int, share: float, seed: int) -> None:
    names = permutation(classes, share, seed).tolist()
    assert sorted(names) == list(range(classes))
    assert sum(name != label for label, name in enumerate(names)) == max(2, round(share * classes))


def test_permutations_of_other_seeds_are_others() -> None:
    assert len({tuple(permutation(10, share, seed).tolist()) for share in (0.3, 1.0) for seed in range(5)}) == 10


def test_nodes_permute_alike_whatever_classes_they_have() -> None:
    few = Y < 3
    (values, changed), *_ = batches(Stream((X[few], Y[few]), (Permute(at=0),)), 0, 1, size=0)
    names = permutation(10, 1.0, 0).tolist()
    assert changed == [names[int(value) % 10] for value in values]


def test_new_classes_appear_with_the_batch() -> None:
    walk = batches(stream(NewClasses(at=5, classes=(7, 8)), NewClasses(at=9, classes=(9,))), 0, 30)
    seen = [{int(label) for label in labels} for _, labels in walk]
    assert set().union(*seen[:5]) <= set(range(7))
    assert set().union(*seen[5:9]) - set(range(7))
    assert set().union(*seen[5:9]) <= set(range(9))
    old = Counter(value for values, _ in walk[:5] for value in values)
    assert max(old.values()) == 1  # 28 examples: the first pass is not over when the era is
    everything = Counter(value for values, _ in walk[9:19] for value in values)
    assert everything == dict.fromkeys(X.flatten().tolist(), 1)  # a new era begins with a new pass


def test_an_era_has_an_order_of_its_own() -> None:
    walk = batches(stream(NewClasses(at=10, classes=(99,))), 0, 20)
    assert {value for values, _ in walk[:10] for value in values} == {
        value for values, _ in walk[10:] for value in values
    }
    assert walk[:10] != walk[10:]


def test_drawn_batches_are_drawn_with_replacement_from_all_examples() -> None:
    walk = batches(stream(passes=False), 0, 100, size=20)
    counts = Counter(value for values, _ in walk for value in values)
    assert len(counts) == 40
    assert max(counts.values()) < 100  # 50 expected of each, with a deviation of 7
    assert any(len(set(values)) < 20 for values, _ in walk)
    assert len({tuple(values) for values, _ in walk}) == 100


def test_a_node_whose_classes_are_all_new_says_so() -> None:
    late = Stream((X[:3], Y[:3]), (NewClasses(at=6, classes=(0, 1, 2)),))
    assert batches(late, 6, 1, size=0)
    with pytest.raises(LearnerFailed, match="before mini-batch 6"):
        batches(late, 5, 1)


@pytest.mark.parametrize("shape", [(5, 8, 8), (5, 3, 8, 8), (5, 64)])
def test_quarter_turns_are_exact(shape: tuple[int, ...]) -> None:
    images = torch.rand(shape, generator=generator_of(1))
    square = images.reshape(5, -1, 8, 8)
    assert torch.allclose(rotated(images, 90), torch.rot90(square, 1, (-2, -1)).reshape(shape), atol=1e-5)
    assert torch.allclose(rotated(images, 360), images, atol=1e-5)


@pytest.mark.parametrize("shape", [(9, 21), (21, 9)])
def test_an_oblong_image_keeps_its_proportions(shape: tuple[int, int]) -> None:
    """The square in its middle turns as it would alone."""
    images = torch.rand((3, *shape), generator=generator_of(4))

    def middle(of: torch.Tensor) -> torch.Tensor:
        top, left = (shape[0] - 9) // 2, (shape[1] - 9) // 2
        return of[:, top : top + 9, left : left + 9]

    assert torch.allclose(middle(rotated(images, 90)), torch.rot90(middle(images), 1, (1, 2)), atol=1e-4)


def test_images_turn_from_the_batch_on() -> None:
    images = torch.rand((12, 64), generator=generator_of(2))
    data = source(Stream((images, Y[:12]), (Rotate(at=2, degrees=90), Rotate(at=4, degrees=90))))
    plain = islice(source((images, Y[:12])).sequence(3, 0, lambda: None), 6)
    for number, (had, got) in enumerate(zip(plain, data.sequence(3, 0, lambda: None), strict=False)):
        turns = (number >= 2) + (number >= 4)
        wanted = torch.rot90(had.data[0].reshape(-1, 8, 8), turns, (1, 2)).reshape(-1, 64)
        assert torch.allclose(got.data[0], wanted, atol=1e-4)


# ---------------------------------------------------------------------------------------------------------- learners
def learner(train, test=None, **more) -> TorchLearner:
    return TorchLearner(lambda: nn.Linear(1, 10), train, test, device="cpu", **more)


def test_a_weight_is_what_was_trained_on_in_this_call() -> None:
    for data in ((X, Y), stream()):
        one = learner(data)
        assert one.train(TrainConfig(steps=3, batch_size=16, batch_index=0)).weight == 16 + 16 + 8
        assert one.train(TrainConfig(steps=1, batch_size=16, batch_index=2)).weight == 8
        assert one.train(TrainConfig(steps=1, batch_size=16)).weight == 40
        assert one.gradient(TrainConfig(steps=1, batch_size=16, batch_index=2))[0].weight == 8


def test_the_loss_of_a_batch_is_taken_before_its_step() -> None:
    one = learner((X / 40, Y))
    one.init(1)
    config = TrainConfig(steps=1, batch_size=8, lr=0.5, batch_index=4)
    batch, _ = next(training_batches(source((X / 40, Y)), config, generator_of(0)))
    inputs, target = batch.data
    before = nn.functional.cross_entropy(one.module(inputs), target).item()
    assert one.train(config).metrics["train/loss"] == pytest.approx(before)
    assert one.train(config).metrics["train/loss"] != pytest.approx(before)


def test_training_in_parts_is_training_at_once() -> None:
    """Earlier training, and the division of the work, change nothing."""
    ends = []
    for parts in ([(0, 12)], [(0, 5), (5, 7)], [(0, 1), (1, 10), (11, 1)]):
        one = learner(Stream((X / 40, Y), (Permute(at=4),)))
        one.train(TrainConfig(steps=7, batch_size=4, batch_index=50, seed=9))
        one.init(0)
        for position, steps in parts:
            one.train(TrainConfig(steps=steps, batch_size=4, batch_index=position, seed=position))
        ends.append(digest(one.model()))
    assert len(set(ends)) == 1


def test_an_order_without_a_position_cannot_train_on_what_drifts() -> None:
    assert learner(stream()).train(TrainConfig(batch_size=4)).weight == 40
    for data in (stream(Permute(at=3)), stream(per_second=9.0)):
        with pytest.raises(LearnerFailed, match="does not say where"):
            learner(data).train(TrainConfig(batch_size=4))


def test_the_test_data_drift_with_the_position_last_trained_on() -> None:
    one = learner(stream(Permute(at=10), NewClasses(at=20, classes=(0, 1, 2, 3, 4))), (X, Y))

    def seen(position: int) -> tuple[float, list[int]]:
        one.train(TrainConfig(steps=2, batch_size=4, lr=0.0, batch_index=position - 1))
        return one.evaluate()["eval/examples"], one.test_data.as_of(one._position).tensors[1].tolist()

    names = permutation(10, 1.0, 0).tolist()
    old, new = [5, 6, 7, 8, 9] * 4, [names[label] for label in range(10)] * 4
    assert one.evaluate()["eval/examples"] == 20
    assert seen(9) == (20, old)
    assert seen(10) == (20, [names[label] for label in old])
    assert seen(20) == (40, new)
    assert seen(9) == (20, old)


def test_the_accuracy_falls_with_the_drift_and_rises_again() -> None:
    one = digits.learner(0, 1, split="iid", drift="permute@200")
    one.init(0)
    marks = []
    for position in range(0, 600, 50):
        one.train(TrainConfig(steps=50, batch_size=16, lr=0.2, batch_index=position))
        marks.append(one.evaluate()["eval/accuracy"])
    one.train(TrainConfig(steps=1, batch_size=16, lr=0.0, batch_index=199))
    assert marks[3] > 0.9 > marks[-1] - 0.09
    assert marks[4] < marks[3] - 0.02
    assert marks[-1] > 0.9
    assert one.evaluate()["eval/accuracy"] < 0.2  # the same weights, on the data as they were


def test_a_node_without_test_data_of_the_present_measures_nothing() -> None:
    late = stream(NewClasses(at=6, classes=(0, 1, 2)))
    one = learner(late, (X[:3], Y[:3]))
    assert one.evaluate() == {}
    one.train(TrainConfig(steps=1, batch_size=4, batch_index=6))
    assert one.evaluate()["eval/examples"] == 3


def test_learners_trained_at_once_walk_through_their_sequences() -> None:
    x, y = digits.digits()
    many = [TorchLearner(models.mlp, (x[k : k + 50], y[k : k + 50]), device="cpu") for k in (0, 50, 100)]
    base = many[0].init(0)
    configs = [TrainConfig(steps=5, batch_size=20, lr=0.1, seed=seed, batch_index=7) for seed in range(3)]
    for one, config, (done, tree, *_) in zip(many, configs, train_stacked(many, base, configs), strict=True):
        one.load(base)
        assert one.train(config).weight == done.weight == 20 + 10 + 20 + 20 + 10
        assert all(np.allclose(tree[name], one.model()[name], atol=1e-6) for name in tree)


# -------------------------------------------------------------------------------------------------------------- pace
class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now, self.slept = 100.0, []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def test_batches_come_over_time() -> None:
    clock = Clock()
    pace = Pace(4.0, lambda: clock.now, clock.sleep)
    arrived = []
    for number in (40, 41, 42, 50):
        pace.wait(number, lambda: None)
        arrived.append(clock.now)
    assert arrived == pytest.approx([100, 100.25, 100.5, 102.5])
    assert max(clock.slept) <= 0.2
    clock.now += 10  # busy with something else: ten seconds of batches have come
    slept = len(clock.slept)
    pace.wait(90, lambda: None)
    assert len(clock.slept) == slept
    pace.wait(91, lambda: None)
    assert clock.now == pytest.approx(112.75)


def test_who_waits_for_a_batch_can_be_called_off() -> None:
    fractions: list[float] = []

    def progress(fraction: float) -> None:
        fractions.append(fraction)
        if len(fractions) == 4:
            raise Cancelled("nobody wants it")

    one = learner(stream(per_second=0.001))
    with pytest.raises(Cancelled):
        one.train(TrainConfig(steps=2, batch_size=4, batch_index=3), progress=progress)
    assert fractions == [0.5, 0.5, 0.5, 0.5]  # after the first batch, and three times while the second does not come


def test_under_a_virtual_clock_nobody_waits() -> None:
    one = learner(stream(per_second=0.001), (X, Y))
    one.use(paced=False)
    assert one.train(TrainConfig(steps=5, batch_size=4, batch_index=3), progress=no_progress).weight == 20
    assert one.evaluate()["eval/examples"] == 40


def test_the_documents_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "how-to" / "streams.md").read_text()
    exec(text.split("```python\n")[1].split("```")[0], {})
    said = capsys.readouterr().out
    # 200 examples in batches of 16 make 12 and one of 8, which is number 38.
    assert said.startswith(f"{9 * 16 + 8}.0 {{")
    assert "'eval/examples': 50.0" in said


# ------------------------------------------------------------------------------------------------------------- texts
def test_drifts_are_named_by_a_text() -> None:
    assert drifts_of("permute@5, rotate:-30.5@9,new:7+8@2,permute:0.5@7") == (
        Permute(5),
        Rotate(9, -30.5),
        NewClasses(2, (7, 8)),
        Permute(7, fraction=0.5, seed=3),
    )
    assert drifts_of("") == ()


@pytest.mark.parametrize(
    "text",
    [
        "permute",
        "permute@x",
        "permute@-1",
        "permute:0@3",
        "permute:2@3",
        "turn:3@4",
        "rotate@3",
        "rotate:inf@3",
        "new@3",
        "new:a+b@3",
        "@3",
    ],
)
def test_a_drift_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        drifts_of(text)
    assert caught.value.code == "learner.stream"


@pytest.mark.parametrize(
    ("data", "more", "says"),
    [
        ([(X[0], Y[0])], {}, "cannot be made of list"),
        ((X, Y), {"drifts": (Permute(0, classes=5),)}, "labels reach 9"),
        ((X, X), {"drifts": (Permute(0),)}, "not labels"),
        ((X, X), {"drifts": (NewClasses(0, (1,)),)}, "not labels"),
        ((torch.zeros(4, 5), Y[:4]), {"drifts": (Rotate(0),)}, "not images"),
        ((torch.zeros(4, 4, 4, dtype=torch.uint8), Y[:4]), {"drifts": (Rotate(0),)}, "not images"),
        ((X, Y), {"seed": -1}, "seed -1"),
        ((X, Y), {"per_second": -1.0}, "batches per second"),
        ((X, Y), {"per_second": float("nan")}, "batches per second"),
    ],
)
def test_a_stream_that_cannot_be_is_refused(data, more, says: str) -> None:
    with pytest.raises(InvalidJob, match=says):
        source(Stream(data, **more))


def test_a_stream_is_made_of_any_tensors() -> None:
    walk = batches(stream(), 3, 3)
    assert batches(Stream(TensorDataset(X, Y)), 3, 3) == walk == batches(Stream((X.numpy(), Y.numpy())), 3, 3)


def test_the_ready_learners_are_streams_when_asked() -> None:
    options = {"part": "1", "parts": "4", "split": "shards:3", "drift": "permute@3,rotate:20@5", "per_second": "1e6"}
    one = load_learner("shoal.learn.digits:learner", options)
    assert one.train(TrainConfig(steps=6, batch_size=10, batch_index=0)).weight == 60
    with pytest.raises(InvalidJob, match="turn"):
        load_learner("shoal.learn.digits:learner", {**options, "drift": "turn:3@4"})
