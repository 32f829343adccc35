"""The learner's promises: seeded, repeatable, interruptible, honest about what the user's code did."""

import math
import subprocess
import sys
import threading
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from shoal.core.algorithm.learner import TrainConfig
from shoal.core.errors import Cancelled, InvalidJob, InvalidPayload, LearnerFailed
from shoal.core.model.tree import Tree, add, digest, scale
from shoal.learn import TorchConfig, TorchLearner, digits, models
from tests.conventions.sources import ROOT
from tests.support.waiting import PATIENCE_S


def dropped() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 10))


def some(count: int = 100, model=dropped, **more) -> TorchLearner:
    x, y = digits.digits()
    return TorchLearner(model, (x[:count], y[:count]), (x[-200:], y[-200:]), device="cpu", **more)


def synthetic() -> TorchLearner:
    """One that needs no data set, which takes a second to import."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(100, 64, generator=generator), torch.randint(10, (100,), generator=generator)
    return TorchLearner(dropped, (x, y), device="cpu")


TASK = TrainConfig(2, batch_size=16, seed=5)


def trained(learner: TorchLearner, config: TrainConfig = TASK, **more) -> str:
    learner.init(1)
    learner.train(config, **more)
    return digest(learner.model())


def test_the_same_order_gives_the_same_bits() -> None:
    learner = some()
    first = trained(learner)
    torch.manual_seed(99)
    np.random.seed(99)  # noqa: NPY002
    torch.rand(7)
    learner.evaluate()
    assert trained(learner) == first
    assert trained(some()) == first
    assert trained(some(), TrainConfig(2, batch_size=16, seed=6)) != first


def test_the_same_order_gives_the_same_bits_in_another_process() -> None:
    code = "from tests.learn import test_torch_learner as t; print(t.trained(t.synthetic()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == trained(synthetic())


def test_two_threads_do_not_disturb_each_other() -> None:
    alone = trained(some())
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(trained(some()))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [alone] * 3


def test_the_worlds_randomness_is_left_alone() -> None:
    learner = some()
    torch.manual_seed(4)
    np.random.seed(4)  # noqa: NPY002
    expected = torch.rand(1), np.random.rand()  # noqa: NPY002
    torch.manual_seed(4)
    np.random.seed(4)  # noqa: NPY002
    trained(learner)
    learner.evaluate()
    assert (torch.rand(1), np.random.rand()) == expected  # noqa: NPY002


def test_init_is_seeded_and_loaded() -> None:
    learner, other = some(), some()
    assert digest(learner.init(7)) == digest(other.init(7)) == digest(learner.model())
    assert digest(learner.init(8)) != digest(other.model())
    assert digest(learner.init(2**70 + 7)) == digest(other.init(2**70 + 7))


def test_a_model_comes_back_as_it_was_loaded() -> None:
    learner, other = some(), some()
    model = learner.init(3)
    other.load(model)
    assert digest(other.model()) == digest(model)
    learner.train(TrainConfig())
    assert digest(other.model()) == digest(model), "a tree must not change with the learner that it came from"


def test_a_model_of_another_shape_is_refused() -> None:
    learner = some()
    before = learner.init(0)
    for wrong in (some(model=models.mlp).init(0), Tree.of({"0.weight": np.zeros((32, 64), np.float32)})):
        with pytest.raises(InvalidPayload):
            learner.load(wrong)
    assert digest(learner.model()) == digest(before)


def test_cancelling_stops_at_once_and_the_next_load_repairs() -> None:
    learner = some()
    expected, model = trained(learner), learner.init(1)
    seen: list[float] = []

    def progress(fraction: float) -> None:
        seen.append(fraction)
        if len(seen) == 3:
            raise Cancelled("superseded")

    with pytest.raises(Cancelled):
        learner.train(TrainConfig(10, batch_size=16), progress=progress)
    assert len(seen) == 3
    learner.load(model)
    learner.train(TASK)
    assert digest(learner.model()) == expected


def test_cancelling_reaches_one_that_waits_for_its_turn() -> None:
    """A process trains one model at a time; waiting ones must still hear that they are cancelled."""
    learner, other = some(), some()
    cancelled: list[bool] = []

    def refuse(fraction: float) -> None:
        raise Cancelled("superseded")

    def wait() -> None:
        with pytest.raises(Cancelled):
            other.train(TrainConfig(), progress=refuse)
        cancelled.append(True)

    thread = threading.Thread(target=wait)

    def meanwhile(fraction: float) -> None:
        if not cancelled:
            thread.start()
            thread.join(PATIENCE_S)

    learner.train(TrainConfig(steps=1), progress=meanwhile)
    assert cancelled


def test_ticks_rise_to_one() -> None:
    seen: list[float] = []
    some().train(TrainConfig(1.5, batch_size=25), progress=seen.append)
    assert seen == [1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1.0]
    seen.clear()
    some().gradient(TrainConfig(9, batch_size=50), progress=seen.append)
    assert seen == [0.5, 1.0]


def test_the_training_loss_is_the_mean_over_examples() -> None:
    """With a learning rate of 0 each batch measures the same model: batches of 30, 30, 30 and 10."""
    learner = some(model=models.mlp)
    learner.init(0)
    x, y = digits.digits()
    expected = nn.functional.cross_entropy(learner.module(x[:100]), y[:100]).item()
    done = learner.train(TrainConfig(batch_size=30, lr=0.0))
    assert done.weight == 100
    assert done.metrics == {"train/loss": pytest.approx(expected, rel=1e-6)}


def test_no_budget_changes_nothing() -> None:
    learner = some()
    model = learner.init(0)
    done = learner.train(TrainConfig(epochs=0))
    assert (done.weight, done.metrics) == (100, {})
    assert digest(learner.model()) == digest(model)


def test_evaluation_measures_the_test_data() -> None:
    learner = some(config=TorchConfig(eval_batch_size=64))
    learner.init(0)
    x, y = digits.digits()
    learner.module.eval()
    output = learner.module(x[-200:])
    learner.module.train()
    expected = {
        "eval/examples": 200.0,
        "eval/loss": pytest.approx(nn.functional.cross_entropy(output, y[-200:]).item(), rel=1e-6),
        "eval/accuracy": pytest.approx(float((output.argmax(1) == y[-200:]).float().mean())),
    }
    assert learner.evaluate() == expected


def test_without_test_data_nothing_is_measured() -> None:
    x, y = digits.digits()
    assert TorchLearner(models.mlp, (x, y)).evaluate() == {}


def test_accuracy_belongs_to_cross_entropy() -> None:
    losses = [nn.CrossEntropyLoss(), partial(nn.functional.cross_entropy, label_smoothing=0.1)]
    assert all("eval/accuracy" in some(loss=loss).evaluate() for loss in losses)
    squares = some(loss=lambda output, target: ((output - nn.functional.one_hot(target, 10)) ** 2).mean())
    assert set(squares.evaluate()) == {"eval/examples", "eval/loss"}
    named = some(metrics={"wrong": lambda output, target: float((output.argmax(1) != target).float().mean())})
    assert set(named.evaluate()) == {"eval/examples", "eval/loss", "eval/wrong"}


def test_a_diverged_model_is_reported_as_it_is() -> None:
    learner = some()
    learner.init(0)
    done = learner.train(TrainConfig(3, batch_size=10, lr=1e30))
    assert not math.isfinite(done.metrics["train/loss"])
    assert not math.isfinite(learner.evaluate()["eval/loss"])


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, lambda parameters, lr: torch.optim.SGD(parameters, lr=lr)])
def test_plain_sgd_is_sgd(optimizer) -> None:
    """The short way around the optimizer computes the same bits."""
    assert trained(some(optimizer=optimizer)) == trained(some())


def momentum(parameters, lr):
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def twice(config: TorchConfig) -> str:
    """Two tasks on the same weights; the second's result."""
    learner = some(optimizer=momentum, config=config)
    model = learner.init(0)
    learner.train(TrainConfig(seed=1, lr=0.01))
    learner.load(model)
    learner.train(TrainConfig(seed=2, lr=0.05))
    return digest(learner.model())


def test_the_optimizer_starts_anew_unless_it_is_kept() -> None:
    fresh = some(optimizer=momentum)
    fresh.init(0)
    fresh.train(TrainConfig(seed=2, lr=0.05))
    assert twice(TorchConfig()) == digest(fresh.model())
    assert twice(TorchConfig(keep_optimizer=True)) != digest(fresh.model())


def test_a_kept_optimizer_follows_the_learning_rate() -> None:
    learner = some(optimizer=momentum, config=TorchConfig(keep_optimizer=True))
    learner.init(0)
    learner.train(TrainConfig(lr=0.1))
    model = learner.model()
    learner.train(TrainConfig(lr=0.0))
    assert digest(learner.model()) == digest(model)


def test_a_cancelled_order_takes_the_kept_optimizer_with_it() -> None:
    def stop(fraction: float) -> None:
        raise Cancelled("superseded")

    learner, other = (some(optimizer=momentum, config=TorchConfig(keep_optimizer=True)) for _ in range(2))
    learner.init(0)
    other.init(0)
    with pytest.raises(Cancelled):
        learner.train(TrainConfig(seed=1), progress=stop)
    learner.load(other.model())
    for one in (learner, other):
        one.train(TrainConfig(seed=2))
    assert digest(learner.model()) == digest(other.model())


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_corrections_reach_every_step(optimizer) -> None:
    """A correction of nothing changes nothing; one that undoes the gradient leaves the weights where they are."""
    assert trained(some(optimizer=optimizer), correct=lambda w, g: g) == trained(some(optimizer=optimizer))
    learner = some(optimizer=optimizer)
    model = learner.init(1)
    calls: list[Tree] = []

    def undo(weights: Tree, gradient: Tree) -> Tree:
        calls.append(weights)
        return add(gradient, gradient, -1.0)

    learner.train(TrainConfig(batch_size=25), correct=undo)
    assert [digest(weights) for weights in calls] == [digest(model)] * 4
    assert digest(learner.model()) == digest(model)


def test_a_correction_sees_the_weights_of_its_step() -> None:
    """FedProx by hand: gradient + mu (w - w0) is what the same term in the loss gives."""
    by_hook, by_loss = some(model=models.mlp), some(model=models.mlp)
    start = by_hook.init(0)
    by_loss.load(start)
    mu = 0.3

    def proximal(batch, output):
        return (
            mu / 2 * sum(((p - torch.tensor(start[name])) ** 2).sum() for name, p in by_loss.module.named_parameters())
        )

    by_hook.train(TrainConfig(seed=1), correct=lambda w, g: add(g, add(w, start, -1.0), mu))
    done = by_loss.train(TrainConfig(seed=1), extra_loss=proximal)
    plain = some(model=models.mlp)
    plain.load(start)
    assert all(np.allclose(by_hook.model()[name], by_loss.model()[name], atol=1e-6) for name in start)
    assert plain.train(TrainConfig(seed=1)).metrics["train/loss"] != done.metrics["train/loss"]
    assert not np.allclose(plain.model()["0.weight"], by_loss.model()["0.weight"], atol=1e-5)


def test_an_extra_loss_sees_batch_and_output() -> None:
    seen = []

    def nothing(batch, output):
        seen.append((tuple(batch[0].shape), tuple(batch[1].shape), tuple(output.shape)))
        return output.sum() * 0

    assert trained(some(), extra_loss=nothing) == trained(some())
    assert seen[0] == ((16, 64), (16,), (16, 10))


def test_the_training_loss_is_the_users_own() -> None:
    """The algorithm's own loss is not in it, so that losses of different algorithms can be compared."""
    learner, other = some(), some()
    other.load(learner.init(0))
    plain = learner.train(TASK)
    assert other.train(TASK, extra_loss=lambda batch, output: output.sum() * 0 + 7).metrics == plain.metrics


def test_the_gradient_is_the_mean_over_all_data() -> None:
    learner = some(model=models.mlp)
    model = learner.init(0)
    x, y = digits.digits()
    nn.functional.cross_entropy(learner.module(x[:100]), y[:100]).backward()
    expected = {name: p.grad.clone() for name, p in learner.module.named_parameters()}
    for batch_size, steps in ((0, 0), (32, 0), (0, 1)):
        done, gradient = learner.gradient(TrainConfig(5, steps=steps, batch_size=batch_size))
        assert done.weight == 100
        assert all(np.allclose(gradient[name], expected[name], atol=1e-7) for name in expected)
    assert digest(learner.model()) == digest(model)


def test_a_gradient_step_moves_statistics_as_the_pass_would() -> None:
    learner = some(model=models.bn)
    model = learner.init(0)
    _, gradient = learner.gradient(TrainConfig(batch_size=0, lr=0.25))
    assert digest(learner.model()) == digest(model)
    moved = add(model, scale(gradient, -0.25))
    learner.train(TrainConfig(batch_size=0, lr=0.25))
    assert all(np.allclose(moved[name], learner.model()[name], atol=1e-6) for name in model)
    assert moved["1.num_batches_tracked"] == 1
    assert not np.allclose(moved["1.running_mean"], model["1.running_mean"])


def test_errors_of_the_users_code_are_told_as_such() -> None:
    def wrong(output, target):
        return nn.functional.cross_entropy(output[:, :3], target)

    learner = some(loss=wrong)
    with pytest.raises(
        LearnerFailed, match=r"training failed in .*test_torch_learner\.py, line \d+: IndexError"
    ) as told:
        learner.train(TrainConfig())
    assert isinstance(told.value.__cause__, IndexError)
    with pytest.raises(LearnerFailed, match="evaluating failed"):
        learner.evaluate()
    with pytest.raises(LearnerFailed, match="computing the gradient failed"):
        learner.gradient(TrainConfig())


def test_local_batch_norm_stays_with_its_node() -> None:
    """FedBN: what BatchNorm learned is not sent, is not overwritten by what comes, and outlives a cancelled task."""
    learner, other = (some(model=models.bn, config=TorchConfig(batch_norm="local")) for _ in range(2))
    model = learner.init(0)
    assert list(model) == ["0.bias", "0.weight", "3.bias", "3.weight"]
    learner.train(TrainConfig())
    mean = learner.module[1].running_mean.clone()
    other.init(5)
    learner.load(other.model())
    assert torch.equal(learner.module[1].running_mean, mean)
    assert mean.abs().sum() > 0

    def stop(fraction: float) -> None:
        raise Cancelled("superseded")

    with pytest.raises(Cancelled):
        learner.train(TrainConfig(), progress=stop)
    assert torch.equal(learner.module[1].running_mean, mean)
    with pytest.raises(InvalidJob, match="local"):
        learner.gradient(TrainConfig())


@pytest.mark.parametrize(("model", "left", "steps"), [(models.bn, 1, 2), (models.bn, 8, 3), (models.mlp, 1, 3)])
def test_batch_norm_never_meets_few_examples(model, left: int, steps: int) -> None:
    """Where two batches of 16 leave less than half a batch over."""
    seen: list[float] = []
    some(32 + left, model=model).train(TrainConfig(batch_size=16), progress=seen.append)
    assert seen == [pytest.approx(step / steps) for step in range(1, steps + 1)]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_trains(precision) -> None:
    learner = some(400, model=models.mlp, config=TorchConfig(precision=precision))
    learner.init(0)
    kinds = []
    learner.module[0].register_forward_hook(lambda module, given, out: kinds.append(out.dtype))
    losses = [learner.train(TrainConfig(seed=seed, batch_size=16)).metrics["train/loss"] for seed in range(8)]
    assert set(kinds) == {torch.bfloat16 if precision == "bf16" else torch.float16}
    assert losses[-1] < 0.5 * losses[0]
    assert learner.evaluate()["eval/accuracy"] > 0.7
    assert learner.model()["0.weight"].dtype == np.float32
    _, gradient = learner.gradient(TrainConfig(batch_size=0))
    assert all(np.isfinite(gradient[name]).all() for name in gradient)


def test_small_gradients_survive_fp16() -> None:
    """Gradients of 1e-8 are nothing in fp16; the loss is scaled so that they are something."""
    learner = some(
        loss=lambda output, target: nn.functional.cross_entropy(output.float(), target) * 1e-7,
        model=models.mlp,
        config=TorchConfig(precision="fp16"),
    )
    before = learner.init(0)
    learner.train(TrainConfig(batch_size=50, lr=1e5))
    assert not np.array_equal(learner.model()["0.weight"], before["0.weight"])


def test_the_operator_chooses_device_and_precision() -> None:
    learner = some()
    learner.use(device="cpu", precision="bf16")
    assert (learner.device.type, learner.config.precision) == ("cpu", "bf16")
    with pytest.raises(InvalidJob):
        learner.use(device="quantum")
    with pytest.raises(InvalidJob, match="int3"):
        learner.use(precision="int3")
    assert (learner.device.type, learner.config.precision) == ("cpu", "bf16")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.Linear(64, 10), "a function that makes one"),
        (lambda: "a model", "gave str"),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(64, 10)), "is parametrized"),
        (lambda: nn.LazyLinear(10), "weight has no shape yet"),
        (lambda: nn.Linear(64, 10, device="meta"), "meta device"),
        (lambda: nn.Linear(64, 10, dtype=torch.complex64), "complex64"),
        (nn.ReLU, "no parameter that can be trained"),
    ],
)
def test_models_that_cannot_travel_are_refused(model, said: str) -> None:
    with pytest.raises(InvalidJob, match=said) as told:
        some(model=model)
    assert told.value.code == "learner.model"


def test_a_model_function_makes_new_modules() -> None:
    module = models.mlp()
    learner = some(model=lambda: module)
    with pytest.raises(InvalidJob, match="same module twice"):
        learner.init(0)


def test_a_failing_model_function_is_named() -> None:
    with pytest.raises(LearnerFailed, match=r"making the model failed in .*: ZeroDivisionError"):
        some(model=lambda: 1 / 0)


def test_extra_state_is_refused() -> None:
    class Extra(nn.Linear):
        def get_extra_state(self):
            return {"steps": 3}

        def set_extra_state(self, state):
            self.steps = state["steps"]

    with pytest.raises(InvalidJob, match="_extra_state is not a tensor"):
        some(model=lambda: Extra(64, 10))


@pytest.mark.parametrize("wrong", [{"precision": "fp64"}, {"batch_norm": "none"}])
def test_wrong_settings_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidJob, match="is '"):
        TorchConfig(**wrong)


def test_memory_of_gradients_is_given_back() -> None:
    for optimizer in (torch.optim.SGD, torch.optim.Adam):
        learner = some(optimizer=optimizer)
        learner.train(TrainConfig())
        assert all(p.grad is None for p in learner.module.parameters())
