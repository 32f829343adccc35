"""A Hugging Face Trainer as a learner: the loop of `TorchLearner` where it is the same, and otherwise the Trainer's."""

import tempfile
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset
from transformers import Trainer, TrainerCallback, TrainingArguments

import shoal
from shoal.algorithms.flexlora import adapter_pairs
from shoal.core.algorithm.correction import Correction
from shoal.core.algorithm.learner import TrainConfig
from shoal.core.errors import Cancelled, InvalidJob, InvalidPayload, LearnerFailed
from shoal.core.model.tree import Tree, digest
from shoal.jobs.spec import parse_job
from shoal.learn import TorchLearner
from shoal.learn.hf import HFLearner
from shoal.learn.hf.checks import check_device
from tests.learn.tiny_bert import WORDS, adapted, arguments, examples, learner

# PEFT asks transformers by names that the newest release has renamed.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

TASK = TrainConfig(epochs=2, batch_size=8, lr=0.1, seed=5)
DROPS = {"hidden_dropout_prob": 0.3}


class Whole(nn.Module):
    """A model that is called with a batch, as `TorchLearner` does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = adapted()

    def forward(self, batch: Any) -> Any:
        return self.inner(**batch)


def torch_learner(count: int = 40, **more: Any) -> TorchLearner:
    return TorchLearner(Whole, examples(count), loss=lambda output, _: output.loss, device="cpu", **more)


def same(ours: Tree, theirs: Tree) -> bool:
    return all(np.array_equal(ours[name], theirs[f"inner.{name}"]) for name in ours)


def trained(made: HFLearner, config: TrainConfig = TASK, **more: Any) -> str:
    made.init(3)
    made.train(config, **more)
    return digest(made.model())


def pulled(start: Tree) -> Correction:
    """FedProx's correction (Li et al. 2020, equation 2), with SCAFFOLD's mean."""
    return Correction(pull=0.5, anchor=start, averages=True)


# ----------------------------------------------------------------------------------------------------- the same loop
@pytest.mark.parametrize(
    ("config", "is_corrected"),
    [
        (TASK, False),
        (TASK, True),
        (TrainConfig(steps=7, batch_size=12, lr=0.1, seed=6), False),
        (TrainConfig(epochs=0.5, batch_size=0, lr=0.1), False),
        (TrainConfig(steps=6, batch_size=12, lr=0.1, seed=7, batch_index=3, sequence_seed=11), False),
    ],
    ids=["passes", "corrected", "steps", "all at once", "from a position"],
)
def test_plain_sgd_gives_the_bits_of_a_torch_learner(config: TrainConfig, is_corrected: bool) -> None:
    """Here corrected on the device, there by calls with trees."""
    ours, theirs = learner(), torch_learner()
    start, other = ours.init(3), theirs.init(3)
    here, there = pulled(start), pulled(other)
    mine = ours.train(config, correct=here if is_corrected else None)
    assert mine == theirs.train(config, correct=there.__call__ if is_corrected else None)
    assert same(ours.model(), theirs.model())
    assert digest(ours.model()) != digest(start)
    assert here.steps == there.steps == (10 if is_corrected else 0)
    means = here.take_mean(), there.take_mean()
    assert is_corrected == (means[0] is not None and means[1] is not None and same(*means))


def test_the_gradient_is_that_of_a_torch_learner() -> None:
    ours, theirs = learner(), torch_learner()
    start = ours.init(3)
    theirs.init(3)
    (mine, gradient), (other, expected) = ours.gradient(TASK), theirs.gradient(TASK)
    assert mine == other
    assert same(gradient, expected)
    assert digest(ours.model()) == digest(start)
    half = TrainConfig(steps=2, batch_size=8, seed=1)
    assert same(ours.gradient(half)[1], theirs.gradient(half)[1])


# --------------------------------------------------------------------------------------------------- the trainer's own
def test_the_same_task_gives_the_same_bits() -> None:
    made = learner(lambda: adapted(**DROPS), {"optim": "adamw_torch", "lr_scheduler_type": "linear"})
    first = trained(made)
    torch.rand(7)
    made.evaluate()
    assert trained(made) == first
    whole = [TrainConfig(steps=2, batch_size=0, lr=0.1, seed=seed) for seed in (5, 6)]
    assert trained(made, whole[0]) != trained(made, whole[1]), "dropout follows the seed too"


class Seen(TrainerCallback):
    """The learning rate of each step, and whether anything was saved."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.saved = False

    def on_save(self, *_: Any, **more: Any) -> None:
        self.saved = True

    def on_step_end(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
        self.rates.append(optimizer.param_groups[0]["lr"])


def test_the_job_sets_the_rate_and_the_schedule_spans_a_task() -> None:
    seen = Seen()
    made = learner(args={"lr_scheduler_type": "linear", "learning_rate": 9.0}, callbacks=[seen])
    for rate in (0.4, 0.8):
        made.train(TrainConfig(steps=4, batch_size=10, lr=rate))
    own = learner(optimizer_cls_and_kwargs=(torch.optim.SGD, {"lr": 9.0}), callbacks=[seen])
    own.train(TrainConfig(steps=1, batch_size=10, lr=0.5))
    assert seen.rates == pytest.approx([0.3, 0.2, 0.1, 0.0, 0.6, 0.4, 0.2, 0.0, 0.5])


class Averaging(Trainer):
    """BERT's loss is the mean of a batch, which the Trainer of transformers 5 takes for a share of the step's."""

    loss_is_scaled_for_ga = False


def test_an_accumulated_step_has_the_examples_of_a_step() -> None:
    """The last step of a pass over 41 examples has one, too few for two parts: the step before takes it."""
    whole, parted = (learner(args={"gradient_accumulation_steps": n}, trainer=Averaging) for n in (1, 4))
    trained(whole), trained(parted)
    for name, values in whole.model().items():
        assert parted.model()[name] == pytest.approx(values, abs=1e-5)
    odd = learner(args={"gradient_accumulation_steps": 2}, count=41)
    assert odd.train(TrainConfig(epochs=1, batch_size=8, lr=0.1)).weight == 41
    tiny = learner(args={"gradient_accumulation_steps": 4}, count=3)
    assert tiny.train(TrainConfig(steps=2, batch_size=8, batch_index=0)).weight == 6


def test_an_optimizer_may_outlive_a_task() -> None:
    momentum = {"optimizer_cls_and_kwargs": (torch.optim.SGD, {"momentum": 0.9, "lr": 7.0})}
    task = TrainConfig(steps=5, batch_size=8, lr=0.1, batch_index=0)
    rest = TrainConfig(steps=5, batch_size=8, lr=0.1, batch_index=5)
    whole = trained(learner(**momentum), TrainConfig(steps=10, batch_size=8, lr=0.1, batch_index=0))
    kept, fresh = learner(keep_optimizer=True, **momentum), learner(**momentum)
    for made in (kept, fresh):
        trained(made, task)
        made.train(rest)
    assert digest(kept.model()) == whole
    assert digest(fresh.model()) != whole


def test_a_kept_optimizer_takes_the_rate_of_its_task() -> None:
    seen = Seen()
    made = learner(keep_optimizer=True, callbacks=[seen])
    for rate in (0.4, 0.8):
        made.train(TrainConfig(steps=1, batch_size=10, lr=rate))
    assert seen.rates == [0.4, 0.8]


def test_what_it_measures() -> None:
    made = learner()
    made.init(3)
    assert made.train(TASK).metrics.keys() == {"train/loss"}
    found = made.evaluate()
    assert found.keys() == {"eval/examples", "eval/loss", "eval/accuracy"}
    assert found["eval/examples"] == 20
    assert learner(test=None).evaluate() == {}


def test_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen = Seen()
    made = learner(args={"save_strategy": "steps", "save_steps": 1, "logging_steps": 1}, callbacks=[seen])
    trained(made)
    made.evaluate()
    assert not seen.saved
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().out == ""


def test_mixed_precision_comes_from_the_arguments_or_the_operator() -> None:
    plain, given, told = learner(), learner(args={"bf16": True}), learner()
    told.use(precision="bf16")
    assert trained(given) == trained(told) != trained(plain)
    assert trained(told) == trained(told), "a second task wraps the model once"
    told.use(precision="float32", device="cpu")
    assert trained(told) == trained(plain)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(8).requires_grad_(False), nn.Linear(8, 2)

    def forward(self, input_ids: Any, labels: Any) -> Any:
        return {"loss": nn.functional.cross_entropy(self.head(self.norm(input_ids.float())), labels)}


def test_frozen_batch_norm_stays_as_it_is() -> None:
    made = HFLearner(Normed, arguments(), examples(40))
    made.train(TASK)
    assert torch.equal(made.module.norm.running_mean, torch.zeros(8))


def test_datasets_are_data() -> None:
    rows = {name: [one[name].tolist() for one in examples(40)] for name in ("input_ids", "labels")}
    table = datasets.Dataset.from_dict({**rows, "text": ["unused"] * 40})
    assert trained(learner(train=table)) == trained(learner())
    plain = table.remove_columns("text").with_format("torch")
    theirs = TorchLearner(Whole, plain, loss=lambda output, _: output.loss, device="cpu")
    theirs.init(3)
    theirs.train(TASK)
    ours = learner()
    trained(ours)
    assert same(ours.model(), theirs.model())


class Endless(IterableDataset):
    def __iter__(self):
        return iter(examples(40))


def test_what_can_only_be_walked_through_is_weighed_by_what_was_seen() -> None:
    made = learner(train=Endless())
    assert made.examples is None
    assert made.train(TrainConfig(steps=3, batch_size=8, lr=0.1)).weight == 24
    assert made.gradient(TrainConfig(steps=3, batch_size=8))[0].weight == 24
    with pytest.raises(LearnerFailed, match="__len__"):
        made.train(TrainConfig(epochs=1))
    with pytest.raises(LearnerFailed, match="a position"):
        made.train(TrainConfig(steps=1, batch_index=0))


def test_other_orders_are_the_trainers() -> None:
    lengths = learner(args={"train_sampling_strategy": "sequential"})
    assert trained(lengths) != trained(learner())
    with pytest.raises(LearnerFailed, match="the Trainer chooses"):
        lengths.train(TrainConfig(steps=1, batch_index=0))


def test_dynamic_averaging_trains_adapters() -> None:
    algorithm = {"steps": 5, "batch_size": 8, "lr": 0.2, "local_steps": 20}
    job = parse_job({"name": "adapters", "preset": "dynamic", "algorithm": algorithm, "schedule": {"delta": 1e-4}})
    made = shoal.simulate(job, [learner(count=40), learner(count=40)])
    again = shoal.simulate(job, [torch_learner(), torch_learner()])
    assert made.state == "done"
    assert same(made.model, again.model)


def test_adapters_are_averaged_by_their_products() -> None:
    """PEFT's names are those that `flexlora` looks for; quantized updates and lost messages included."""
    learners = [learner(train=examples(24, seed)) for seed in range(3)]
    schedule = {"name": "rounds", "min_nodes": 3, "quorum": 3}
    job = {"name": "lora", "rounds": 2, "algorithm": {"name": "flexlora", "lr": 0.5}, "schedule": schedule}
    faults = shoal.Faults(until_s=10, message_loss=0.2, message_duplicates=0.2, node_crashes=1)
    made = shoal.simulate({**job, "filters": [{"name": "quantize"}]}, learners, faults=faults, fault_seed=1)
    pairs = adapter_pairs(made.model.layout)
    assert len(pairs) == 4
    for a, b in pairs:  # of a decomposition: the rows of A are orthogonal and of one length, the columns of B fall
        rows, columns = made.model[a].astype(float), made.model[b].astype(float)
        gram, sizes = rows @ rows.T, np.linalg.norm(columns, axis=0)
        np.testing.assert_allclose(gram / gram[0, 0], np.eye(len(gram)), atol=0.02)
        assert (np.diff(sizes) <= 1e-6).all()


# --------------------------------------------------------------------------------------------------------------- errors
@pytest.mark.parametrize("name", ["auto_find_batch_size", "push_to_hub"])
def test_arguments_without_a_place_in_a_task_are_named(name: str) -> None:
    with pytest.raises(InvalidJob, match=name):
        learner(args={name: True})


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"optimizers": (1, 2)}, "optimizers of Trainer"),
        ({"model_init": adapted}, "model_init of Trainer"),
        ({"train": []}, "no example"),
        ({"train": None}, "not training data"),
        ({"test": {"a": [1]}}, "eval_dataset is dict"),
        ({"processing_class": range(WORDS + 1)}, "61 tokens, the model embeddings for 60"),
    ],
)
def test_what_cannot_be_used_is_named(more: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidJob, match=text):
        learner(**more)


def test_a_mistake_in_the_arguments_shows_before_the_first_task() -> None:
    with pytest.raises(LearnerFailed, match="unexpected keyword argument 'collator'"):
        learner(collator=list)
    with pytest.raises(InvalidJob, match="args is list"):
        HFLearner(adapted, [], [])
    with pytest.raises(InvalidJob, match="cannot be told to use cuda:1"):
        check_device(torch.device("cuda", 1))
    with pytest.raises(InvalidJob, match="all 2 GPUs"):
        check_device(torch.device("cuda", 0), 2)


def test_a_schedule_that_would_begin_anew_is_refused() -> None:
    made = HFLearner(adapted, TrainingArguments(use_cpu=True), examples(40))
    with pytest.raises(LearnerFailed, match="kind linear") as told:
        made.train(TrainConfig(steps=1, batch_index=0))
    assert 'lr_scheduler_type="constant"' in told.value.hint


class Failing(TrainerCallback):
    fails = True

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.fails and state.global_step == 3:
            raise RuntimeError("no disk for my plots")


def test_an_exception_in_a_callback_is_named_and_leaves_no_trace() -> None:
    failing = Failing()
    made = learner(lambda: adapted(**DROPS), {"neftune_noise_alpha": 5.0}, callbacks=[failing])
    with pytest.raises(LearnerFailed, match=r"test_hf_learner.py, line \d+: RuntimeError: no disk for my plots"):
        trained(made)
    failing.fails = False
    assert trained(made) == trained(learner(lambda: adapted(**DROPS), {"neftune_noise_alpha": 5.0}))


def test_cancelled_training_leaves_no_trace() -> None:
    told: list[float] = []

    def progress(fraction: float) -> None:
        told.append(fraction)
        if len(told) == 3:
            raise Cancelled("no longer wanted")

    made = learner()
    with pytest.raises(Cancelled):
        trained(made, progress=progress)
    assert told == [0.1, 0.2, 0.3]
    assert trained(made) == trained(learner())


def test_a_loss_that_is_no_number_is_reported_as_it_is() -> None:
    made = learner()
    made.init(3)
    assert np.isnan(made.train(TrainConfig(epochs=2, batch_size=8, lr=1e30)).metrics["train/loss"])


def test_a_loss_that_is_no_number_on_some_examples_is_not_left_out() -> None:
    test = [{**one, "input_ids": one["input_ids"].float()} for one in examples(20)]
    test[0]["input_ids"][0] = np.nan
    assert np.isnan(HFLearner(Normed, arguments(), examples(40), test).evaluate()["eval/loss"])


def test_unequal_ranks_are_refused_by_name() -> None:
    start = learner().init(0)
    other = learner(lambda: adapted(rank=8))
    with pytest.raises(
        InvalidPayload, match=r"lora_A.default.weight is F32\[8, 32\] in one tree, .* is F32\[4, 32\]"
    ) as told:
        other.load(start)
    assert told.value.hint == "the ranks of adapters must be equal on all nodes"


def test_another_base_is_refused_by_name() -> None:
    with pytest.raises(InvalidPayload, match="base model"):
        learner(lambda: adapted(seed=1)).load(learner().init(0))


def test_a_trainer_of_ones_own() -> None:
    class Doubled(Trainer):
        def compute_loss(self, *given: Any, **more: Any) -> Any:
            return 2 * super().compute_loss(*given, **more)

    task = TrainConfig(steps=1, batch_size=40, lr=0.1)
    twice = learner(trainer=Doubled)
    assert trained(twice, task) == trained(learner(), TrainConfig(steps=1, batch_size=40, lr=0.2))


def test_scaffold_takes_plain_sgd_and_refuses_other_optimizers() -> None:
    job = {"name": "a", "rounds": 1, "algorithm": "scaffold"}
    own = {"optimizer_cls_and_kwargs": (torch.optim.SGD, {"momentum": 0.9})}
    others = [
        (learner(args={"optim": "adamw_torch"}), "AdamW"),
        (learner(args={"weight_decay": 0.1}), "SGD(weight_decay=0.1)"),
        (learner(**own), "SGD(momentum=0.9)"),
    ]
    assert learner().other_optimizer == ""
    for one, words in others:
        assert one.other_optimizer == words
        with pytest.raises(InvalidJob, match="scaffold is made for local steps of plain SGD") as refused:
            shoal.simulate(job, [one], progress=False)
        assert refused.value.message.endswith(f"the optimizer of HFLearner is {words}")
