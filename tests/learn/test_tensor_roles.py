"""Which tensors of a model nodes exchange, and what stays: the base model, and what each node trains for itself."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import shoal
from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.algorithm.learner import TrainConfig
from shoal.core.errors import InvalidJob, InvalidPayload, LearnerFailed
from shoal.core.model.tree import Tree
from shoal.jobs.spec import parse_job
from shoal.learn import TorchConfig, TorchLearner
from shoal.learn.training.module_learner import load_base
from shoal.model_file import save_base, save_model
from shoal.wire.payload import open_payload

X, Y = torch.randn(40, 6, generator=torch.Generator().manual_seed(1)), torch.arange(40) % 3
FRAME = ["0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"]


def network(base: int = 7) -> nn.Module:
    """A frozen part from a seed of its own, with BatchNorm, under a head that is trained."""
    with torch.random.fork_rng():
        torch.manual_seed(base)
        frame = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU()).requires_grad_(False)
    return nn.Sequential(*frame, nn.Linear(5, 3))


def learner(model=network, **more) -> TorchLearner:
    return TorchLearner(model, (X, Y), device="cpu", **more)


def frame_of(made: TorchLearner) -> dict[str, torch.Tensor]:
    return {name: made.module.state_dict()[name].clone() for name in FRAME}


def test_only_what_is_trained_travels() -> None:
    one = learner()
    before, start = frame_of(one), one.init(3)
    assert sorted(start) == ["3.bias", "3.weight"]
    one.train(TrainConfig(epochs=2, lr=0.1))
    assert not np.array_equal(one.model()["3.weight"], start["3.weight"])
    assert all(torch.equal(tensor, before[name]) for name, tensor in frame_of(one).items())
    assert sorted(learner(config=TorchConfig(travels="all")).init(3)) == sorted([*FRAME, "3.bias", "3.weight"])


def test_a_model_without_frozen_parts_travels_whole() -> None:
    made = learner(lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)))
    assert len(made.layout.leaves) == 9
    assert made.layout.base_model == ""


def test_the_digest_is_that_of_a_file_of_the_frozen_tensors(tmp_path: Path) -> None:
    one = learner()
    path = save_model(Tree.of({name: tensor.numpy() for name, tensor in frame_of(one).items()}), tmp_path / "base")
    assert one.layout.base_model == hashlib.sha256(path.read_bytes()).hexdigest()
    assert learner().layout == one.layout
    assert learner(lambda: network(8)).layout != one.layout


class Adapter(nn.Module):
    """Adapters with A frozen, and drawn again by each call (FFA-LoRA)."""

    def __init__(self) -> None:
        super().__init__()
        self.lora_A, self.lora_B = nn.Linear(6, 2, bias=False), nn.Linear(2, 3, bias=False)
        self.lora_A.weight.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lora_B(self.lora_A(x))


def test_a_frozen_factor_is_the_same_on_all_nodes() -> None:
    """It belongs to the base model, whatever was drawn before and whatever seed the fresh weights have."""
    one = learner(Adapter)
    torch.rand(3)
    other = learner(Adapter)
    assert sorted(one.init(5)) == ["lora_B.weight"]
    other.load(one.init(5))
    assert torch.equal(one.module.lora_A.weight, other.module.lora_A.weight)
    assert one.layout == other.layout


def test_another_base_model_is_refused_by_name() -> None:
    one, other = learner(), learner(lambda: network(8))
    with pytest.raises(InvalidPayload, match="base model") as told:
        other.load(one.init(0))
    assert told.value.code == "payload.base-model"
    assert one.layout.base_model[:12] in told.value.message
    assert other.layout.base_model[:12] in told.value.message
    assert "base model" in one.layout.form.beside(other.layout.form)


def test_another_base_model_can_be_loaded(tmp_path: Path) -> None:
    one, other = learner(), learner(lambda: network(8))
    path = save_base(one, tmp_path / "base.safetensors")
    assert one.layout.base_model == hashlib.sha256(path.read_bytes()).hexdigest()
    load_base(other, tree_slot(open_payload(path.read_bytes()), "model"))
    assert other.layout == one.layout
    other.load(one.init(3))
    one.train(TrainConfig(lr=0.1))
    other.train(TrainConfig(lr=0.1))
    assert all(torch.equal(tensor, frame_of(other)[name]) for name, tensor in frame_of(one).items())
    assert np.array_equal(one.model()["3.weight"], other.model()["3.weight"])
    assert other.init(3).layout == one.layout


def test_a_base_model_with_other_tensors_is_refused() -> None:
    made = learner()
    before, layout = frame_of(made), made.layout
    foreign = {name: tensor.numpy() for name, tensor in before.items()} | {"0.bias": np.zeros(6, np.float32)}
    with pytest.raises(InvalidPayload, match=r"0.bias is F32\[5\] in one tree, 0.bias is F32\[6\] in the other"):
        load_base(made, Tree.of(foreign))
    assert made.layout == layout
    assert all(torch.equal(tensor, before[name]) for name, tensor in frame_of(made).items())
    with pytest.raises(InvalidPayload, match="one tree has 0 tensors"):
        load_base(learner(lambda: nn.Linear(6, 3)), made.weights.base())
    with pytest.raises(InvalidJob, match="has no frozen tensors"):
        save_base(learner(lambda: nn.Linear(6, 3)), "unused")


def test_the_base_does_not_depend_on_the_seed_of_the_weights() -> None:
    """A node whose model function draws the frozen part at random keeps that of its start."""
    made = learner(lambda: nn.Sequential(nn.Linear(6, 5).requires_grad_(False), nn.Linear(5, 3)))
    before = made.module[0].weight.clone()
    first, second = made.init(1), made.init(2)
    assert first.layout == second.layout
    assert not np.array_equal(first["1.weight"], second["1.weight"])
    assert torch.equal(made.module[0].weight, before)


class Counting(nn.Module):
    """A buffer that is a constant, and one that each pass changes."""

    def __init__(self, moves: bool) -> None:
        super().__init__()
        self.frozen = nn.Linear(6, 5).requires_grad_(False)
        self.head = nn.Linear(5, 3)
        self.register_buffer("scale", torch.full((5,), 2.0))
        self.moves = moves

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.moves:
            self.scale.add_(1.0)
        return self.head(self.frozen(x) * self.scale)


def test_a_buffer_that_changes_must_travel() -> None:
    still = learner(lambda: Counting(False))
    assert sorted(still.init(0)) == ["head.bias", "head.weight"]
    still.train(TrainConfig())
    moving = learner(lambda: Counting(True))
    moving.init(0)
    with pytest.raises(LearnerFailed, match="changed the buffer scale") as told:
        moving.train(TrainConfig())
    assert 'travels="all"' in told.value.hint


def test_a_function_chooses() -> None:
    """A head that is trained and does not travel is the node's own; a frozen tensor that travels is not a base."""
    made = learner(config=TorchConfig(travels=lambda name, tensor: name.startswith("0.") or name == "3.bias"))
    start = made.init(0)
    assert sorted(start) == ["0.bias", "0.weight", "3.bias"]
    own = made.module[3].weight.clone()
    made.train(TrainConfig(lr=0.5))
    assert not torch.equal(made.module[3].weight, own)
    trained = made.module[3].weight.clone()
    made.load(start)
    assert torch.equal(made.module[3].weight, trained)
    with pytest.raises(InvalidJob, match="trains locally"):
        made.gradient(TrainConfig())


def test_norms_that_stay_local_are_no_base_unless_frozen() -> None:
    local = TorchConfig(batch_norm="local")

    def half() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 5).requires_grad_(False), nn.BatchNorm1d(5), nn.Linear(5, 3))

    made = learner(half, config=local)
    assert sorted(made.init(0)) == ["2.bias", "2.weight"]
    assert sorted(made.weights.roles.base) == ["0.bias", "0.weight"]
    assert "1.running_mean" in made.weights.roles.local
    frozen = learner(config=local)
    assert sorted(frozen.weights.roles.base) == sorted(FRAME)
    assert not frozen.weights.roles.local


def test_statistics_of_norms_that_train_travel() -> None:
    made = learner(lambda: nn.Sequential(nn.Linear(6, 5).requires_grad_(False), nn.BatchNorm1d(5), nn.Linear(5, 3)))
    assert {"1.running_mean", "1.weight", "2.weight"} <= set(made.init(0))
    plain = learner(
        lambda: nn.Sequential(nn.Linear(6, 5).requires_grad_(False), nn.BatchNorm1d(5, affine=False), nn.Linear(5, 3))
    )
    assert "1.running_mean" in plain.init(0), "a layer without parameters cannot be frozen"


@pytest.mark.parametrize(
    ("travels", "code"), [("some", "learner.travels"), (lambda name, tensor: False, "learner.travels")]
)
def test_what_cannot_travel_is_refused(travels, code: str) -> None:
    with pytest.raises(InvalidJob) as told:
        learner(config=TorchConfig(travels=travels))
    assert told.value.code == code


def test_a_frozen_model_is_refused() -> None:
    with pytest.raises(InvalidJob, match="no parameter that can be trained"):
        learner(lambda: nn.Linear(6, 3).requires_grad_(False))


def test_a_file_of_adapters_completes_its_own_base_alone(tmp_path: Path) -> None:
    one = learner()
    one.init(3)
    one.train(TrainConfig(epochs=2))
    path = save_model(one.model(), tmp_path / "adapters.safetensors")
    filled = shoal.load_model(path, into=network())
    assert torch.equal(filled[3].weight, one.module[3].weight)
    with pytest.raises(InvalidPayload, match="not those of base model") as told:
        shoal.load_model(path, into=network(8))
    assert "strict=False" in told.value.hint
    assert torch.equal(shoal.load_model(path, into=network(8), strict=False)[3].weight, one.module[3].weight)
    assert shoal.load_model(path).layout == one.layout


class LowRank(nn.Module):
    """A frozen layer plus a trained correction of rank 4 (LoRA, Hu et al. 2021, section 4.1)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.frozen = nn.Linear(inputs, outputs).requires_grad_(False)
        self.a, self.b = nn.Linear(inputs, 4, bias=False), nn.Linear(4, outputs, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.frozen(x) + self.b(self.a(x)))


def adapted() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(LowRank(6, 1024), LowRank(1024, 1024), LowRank(1024, 3))


@pytest.mark.parametrize("fidelity", ["lean", "wire"])
@pytest.mark.parametrize(
    ("fields", "trees"),
    [({}, 1), ({"algorithm": {"name": "scaffold"}}, 2), ({"preset": "dynamic"}, 1)],
    ids=["fedavg", "scaffold", "dynamic"],
)
def test_a_round_costs_the_bytes_of_the_adapters(fields: dict, trees: int, fidelity, tmp_path: Path) -> None:
    learners = [learner(adapted) for _ in range(3)]
    size = save_model(learners[0].model(), tmp_path / "adapters").stat().st_size
    whole = save_model(learner(adapted, config=TorchConfig(travels="all")).model(), tmp_path / "all").stat().st_size
    assert 50 * size < whole
    made = shoal.simulate(parse_job({"name": "adapters", "rounds": 3, **fields}), learners, fidelity=fidelity)
    for node in ("node-1", "node-2"):  # node-0 has sent the initial model too
        assert made.up_bytes[node] <= 1.02 * 3 * trees * size
        assert made.down_bytes[node] <= 1.02 * 4 * trees * size
    assert made.model.layout.base_model == learners[0].layout.base_model
    assert made.load_into(adapted())[1].b.weight.abs().max() > 0


def test_what_stacked_learners_make_completes_their_base() -> None:
    """Nine alike learners train at once; their base is that of the first."""
    learners = [learner(lambda: nn.Sequential(*adapted())) for _ in range(9)]
    job = parse_job({"name": "adapters", "rounds": 2})
    made = shoal.simulate(job, learners)
    assert made.training == "18 tasks at once"
    assert made.model.layout == learners[8].layout
    assert made.load_into(adapted())[1].b.weight.abs().max() > 0
