"""A module as a tree and back: shared tensors, whole numbers, every type, any memory format."""

import mmap
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import shoal
from shoal.core.errors import InvalidJob, InvalidPayload, LearnerFailed
from shoal.core.model.tree import Tree, digest
from shoal.learn.training.weights import (
    TORCH_DTYPES,
    TensorRoles,
    Weights,
    built,
    load_into,
    norm_tensors,
    pack,
    packed_on,
    unpack,
)
from shoal.model_file import save_model


class Tied(nn.Module):
    """A language model in small: the embedding is the output layer's weight too."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.out = nn.Linear(3, 5, bias=False)
        self.out.weight = self.embed.weight
        self.twice = nn.ModuleList([self.out, self.out])


def test_a_shared_tensor_travels_once_and_stays_shared() -> None:
    module, other = Tied(), Tied()
    tree = Weights(module).save()
    assert list(tree) == ["embed.weight"]
    Weights(other).load(tree)
    assert other.out.weight is other.embed.weight
    assert torch.equal(other.out.weight, module.embed.weight)


class Kinds(nn.Module):
    """A tensor of every type and some odd shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 2))
        self.frozen = nn.Parameter(torch.randn(2), requires_grad=False)
        for name, dtype in TORCH_DTYPES.items():
            self.register_buffer(f"a_{name}", torch.arange(7).to(dtype))
        self.register_buffer("scalar", torch.tensor(3))
        self.register_buffer("rough", torch.tensor(1.5, dtype=torch.bfloat16))
        self.register_buffer("nothing", torch.zeros(0, 4))
        self.register_buffer("cache", torch.ones(3), persistent=False)
        self.register_buffer("absent", None)


def test_every_type_travels_unchanged() -> None:
    module, other = Kinds(), Kinds()
    tree = Weights(module).save()
    for p in (*other.parameters(), *other.buffers()):
        p.detach().zero_()
    Weights(other).load(tree)
    saved, loaded = module.state_dict(), other.state_dict()
    assert set(tree) == set(saved)
    assert all(torch.equal(saved[name], loaded[name]) for name in saved)
    assert other.cache.sum() == 0, "what is not saved does not travel"
    assert tree.layout.index["rough"].dtype == "BF16"
    assert (tree["scalar"], tree["a_I16"].tolist()) == (3, [0, 1, 2, 3, 4, 5, 6])


def test_a_tree_read_from_a_file_loads(tmp_path: Path) -> None:
    module, other = Kinds(), Kinds()
    tree = Weights(module).save()
    (tmp_path / "model").write_bytes(tree.buffer.tobytes())
    with (tmp_path / "model").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        Weights(other).load(Tree(tree.layout, mapped))
        Weights(other).load(Tree(tree.layout, mapped[:]))
    assert digest(Weights(other).save()) == digest(tree)


def test_other_memory_formats_travel() -> None:
    module = nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last)
    other = nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last)
    assert not other.weight.is_contiguous()
    Weights(other).load(Weights(module).save())
    assert torch.equal(other.weight, module.weight)
    assert not other.weight.is_contiguous()


def test_a_buffer_that_is_replaced_is_found_again() -> None:
    class Moving(nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 2)
            self.register_buffer("mean", torch.zeros(2))

    module = Moving()
    weights = Weights(module)
    module.mean = torch.ones(2)
    tree = weights.save()
    assert tree["mean"].tolist() == [1, 1]
    fives = {name: np.full_like(tree[name], 5) for name in tree}
    weights.load(Tree.of(fives, statistics=tree.layout.statistics))
    assert module.mean.tolist() == [5, 5]
    module.mean = torch.ones(3)
    with pytest.raises(LearnerFailed, match=r"mean was F32\[2\]"):
        weights.save()


def test_buffers_of_floats_are_statistics_whatever_they_are_called() -> None:
    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(2))
            self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
            self.register_buffer("moving_variance", torch.ones(2, dtype=torch.float16))
            self.register_buffer("scratch", torch.ones(2), persistent=False)
            self.register_buffer("count", torch.ones(2, dtype=torch.int32))

    network = nn.Sequential(nn.BatchNorm1d(2), Norm())
    assert Weights(network).layout.statistics == {"0.running_mean", "0.running_var", "1.moving_variance"}
    exchanged = Weights(network, TensorRoles(local=norm_tensors(network))).layout
    assert exchanged.statistics == {"1.moving_variance"}


def test_a_model_without_marks_fits_a_module() -> None:
    """Other programs write none."""
    network = nn.BatchNorm1d(2)
    made = Weights(network).save()
    plain = Tree.of({name: np.array(made[name]) + 3 for name in made})
    assert plain.layout != made.layout
    load_into(network, plain)
    assert network.running_var is not None
    assert network.running_var.tolist() == [4, 4]


def test_packing_on_a_device_is_packing() -> None:
    """The work of a GPU before its one transfer, here on the CPU."""
    weights = Weights(Kinds())
    flat = packed_on(torch.device("cpu"), weights.layout, weights.tensors())
    assert np.array_equal(flat.numpy(), weights.save().buffer)


def test_missing_tensors_become_zero() -> None:
    layout = Weights(nn.Linear(2, 1)).layout
    tree = pack(layout, {"bias": torch.ones(1)})
    assert (tree["bias"].tolist(), tree["weight"].tolist()) == ([1], [[0, 0]])
    bias = torch.zeros(1)
    unpack(tree, {"bias": bias})
    assert bias.tolist() == [1]


def test_a_model_of_any_type_comes_back_bit_for_bit(tmp_path: Path) -> None:
    """By the tree, a file of ours and one of safetensors' own; -0.07 must not come back as 48640."""
    module, path = Kinds(), tmp_path / "model.safetensors"
    module.rough.fill_(-0.07)
    tree = Weights(module).save()
    assert torch.tensor(tree["rough"]).item() == module.rough.item() == pytest.approx(-0.07, abs=1e-3)
    assert save_model(tree, path) == path
    for found in (
        load_into(Kinds(), tree),
        shoal.load_model(path, into=Kinds()),
        shoal.load_model(str(path), into=Kinds()),
    ):
        assert all(torch.equal(value, found.state_dict()[name]) for name, value in module.state_dict().items())
    assert all(torch.equal(value, load_file(path)[name]) for name, value in module.state_dict().items())
    assert {name: array.tolist() for name, array in shoal.load_model(path).items()} == {
        name: value.tolist() for name, value in module.state_dict().items()
    }
    save_file({name: value.clone() for name, value in module.state_dict().items()}, path, {"format": "pt"})
    assert all(
        torch.equal(v, module.state_dict()[n]) for n, v in shoal.load_model(path, into=Kinds()).state_dict().items()
    )


def test_loading_keeps_ties_and_names_what_differs() -> None:
    tied = Tied()
    trained = Weights(Tied()).save()
    assert load_into(tied, trained) is tied
    assert tied.out.weight is tied.embed.weight
    network = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    without = Weights(network, TensorRoles(local=norm_tensors(network))).save()
    with pytest.raises(
        InvalidPayload, match=r"the model lacks 1\.num_batches_tracked, 1\.bias, .*1\.running_var\n"
    ) as told:
        load_into(network, without)
    assert "strict=False" in told.value.hint
    kept = network[1].running_mean.clone()
    network[0].weight.detach().zero_()
    load_into(network, without, strict=False)
    assert torch.equal(network[0].weight, torch.tensor(without["0.weight"]))
    assert torch.equal(network[1].running_mean, kept)
    with pytest.raises(InvalidPayload, match=r"the model is not that of Linear: .*F32\[2, 4\]") as told:
        load_into(nn.Linear(4, 2), Weights(nn.Linear(3, 2)).save())
    assert "the function that the learner was given" in told.value.hint
    with pytest.raises(InvalidJob, match="Tied is not a torch module") as refused:
        load_into(Tied, trained)  # type: ignore[type-var]
    assert refused.value.hint == "call it: Tied()"
    with pytest.raises(InvalidPayload, match="BF16"):
        load_into(nn.Linear(3, 2), Weights(nn.Linear(3, 2).to(torch.bfloat16)).save())


def test_a_lightning_module_is_refused_by_name() -> None:
    class LitDigits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(3, 2)

        def training_step(self, batch: object, number: int) -> None: ...

    with pytest.raises(InvalidJob, match="LitDigits has a training_step, which is not called") as told:
        built(LitDigits)
    assert "model=lambda: LitDigits(…).net" in told.value.hint
    assert isinstance(built(lambda: LitDigits().net), nn.Linear)
