"""Cuts of a model: consecutive modules of an `nn.Sequential` for each side, under the names that they have in it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from shoal.core.errors import InvalidJob
from shoal.core.split.split_plan import LabelPlace, TensorForm
from shoal.learn.data.batches import split
from shoal.learn.training.weights import NAME_OF, saved_tensors

CutPoint = int | str
"""The number of modules before a cut, or the name of the module after it, such as "4" or "features.3"."""
Cut = CutPoint | tuple[CutPoint, CutPoint]
"""One cut; or two, with the node's last modules after the second."""


@dataclass(frozen=True)
class SplitModel:
    """The parts of a model: the node has `first` and `last` (empty without labels at the node), the coordinator has
    `middle`."""

    first: nn.Sequential
    middle: nn.Sequential
    last: nn.Sequential

    @property
    def of_node(self) -> tuple[nn.Sequential, ...]:
        """The modules of the node."""
        return self.first, self.last


def split_model(model: nn.Module, cut: Cut, labels: LabelPlace) -> SplitModel:
    """Return the parts of a model, whose modules they share. Raises `InvalidJob` for a cut that cannot be made.

    With labels at the node and one cut, the last module is the node's, too.
    """
    if labels == "coordinator" and isinstance(cut, tuple):
        text, hint = "two cuts, with the labels at the coordinator", 'give one cut, or labels="node"'
        raise InvalidJob(text, code="split.cut", hint=hint)
    points = cut if isinstance(cut, tuple) else (cut,)
    if labels == "node" and len(points) == 1:
        points = (*points, len(cut_children(model)) - 1)
    first, middle, *last = parts_at(model, points)
    found = SplitModel(first, middle, last[0] if last else nn.Sequential())
    _check_parts(found)
    return found


def parts_at(model: nn.Module, points: Sequence[CutPoint]) -> list[nn.Sequential]:
    """Return the parts of a chain before, between and after cuts. Raises `InvalidJob` for a cut that cannot be made."""
    parts, rest = list[nn.Sequential](), nn.Sequential(OrderedDict(cut_children(model)))
    for name in [_name_of(model, point) for point in points]:
        part, rest = _parted(rest, name.split("."), name)
        parts.append(part)
    return [*parts, rest]


def cut_children(module: nn.Module, name: str = "") -> list[tuple[str, nn.Module]]:
    """Return the modules of a chain by name, in their order. Raises `InvalidJob` for a module of another kind."""
    if not isinstance(module, nn.Sequential) or type(module).forward is not nn.Sequential.forward:
        place = f"{name!r} is a {type(module).__name__}" if name else f"the model is a {type(module).__name__}"
        raise InvalidJob(
            f"a cut inside a module that is not a chain: {place}",
            code="split.cut",
            hint="cut before or after it; a model of other kinds can be nn.Sequential(first, rest)",
        )
    direct = [one for one, _ in module.named_modules(remove_duplicate=False) if one and "." not in one]
    return list(zip(direct, module, strict=True))


def _name_of(model: nn.Module, point: CutPoint) -> str:
    if isinstance(point, str):
        return point
    names = [name for name, _ in cut_children(model)]
    if not 1 <= point < len(names):
        hint = f"use 1 to {len(names) - 1}"
        raise InvalidJob(f"a cut at {point}, in a model of {len(names)} modules", code="split.cut", hint=hint)
    return names[point]


def _parted(module: nn.Module, path: Sequence[str], whole: str) -> tuple[nn.Sequential, nn.Sequential]:
    """Return the modules before the one at `path`, and the others."""
    children = cut_children(module, ".".join(whole.split(".")[: -len(path)]))
    names = [name for name, _ in children]
    if path[0] not in names:
        hint = f"use {' or '.join(names[1:] or names)}, in the order of the model"
        raise InvalidJob(f"no module {whole!r} to cut at", code="split.cut", hint=hint)
    place = names.index(path[0])
    before, after = children[:place], children[place:]
    if len(path) > 1:
        left, right = _parted(children[place][1], path[1:], whole)
        before, after = [*before, (path[0], left)], [(path[0], right), *after[1:]]
    return nn.Sequential(OrderedDict(before)), nn.Sequential(OrderedDict(after))


def _check_parts(model: SplitModel) -> None:
    """Raise `InvalidJob` unless both sides have something to train, and nothing in common."""
    for side, parts in (("the node's first modules", (model.first,)), ("the coordinator's modules", (model.middle,))):
        if not any(one.requires_grad for part in parts for one in part.parameters()):
            hint = "move the cut, so that both sides have a trained layer"
            raise InvalidJob(f"{side} have no parameter to train", code="split.cut", hint=hint)
    mine = {id(tensor): name for name, tensor in saved_tensors(model.middle).items()}
    for part in model.of_node:
        for name, tensor in saved_tensors(part).items():
            if id(tensor) in mine:
                raise InvalidJob(f"{name} is on both sides of the cut", code="split.cut", hint="move the cut")
    if {id(one) for one in model.first.parameters()} & {id(one) for one in model.last.parameters()}:
        raise InvalidJob("the node's first and last modules share a tensor", code="split.cut", hint="move the cut")


def cut_forms(model: SplitModel, batch: object, labels: LabelPlace) -> tuple[tuple[TensorForm, ...], TensorForm | None]:
    """Return the forms of the activations at each cut and of labels that are sent, from one batch.

    Raises `InvalidJob` for data without labels, and for activations that cannot be exchanged.
    """
    if not isinstance(batch, tuple | list) or len(batch) != 2 or not all(isinstance(one, Tensor) for one in batch):
        text, hint = "the data have no labels, or several inputs", "give tensors or a Dataset of pairs (input, label)"
        raise InvalidJob(text, code="split.labels", hint=hint)
    (value,), target = split(batch)
    examples, forms = len(value), list[TensorForm]()
    training = [(module, module.training) for part in (*model.of_node, model.middle) for module in part.modules()]
    try:
        with torch.no_grad():
            for name, part in (("first", model.first), ("second", model.middle)):
                value = part.eval()(value)
                forms.append(activation_form(f"the {name} cut", value, examples))
    finally:
        for module, was in training:
            module.training = was
    if labels == "node":
        return tuple(forms), None
    return tuple(forms[:1]), TensorForm(NAME_OF[target.dtype], tuple(target.shape[1:]))


def activation_form(where: str, value: object, examples: int) -> TensorForm:
    """Return the form of activations. Raises `InvalidJob` for those that cannot be exchanged."""
    if not isinstance(value, Tensor) or value.dtype != torch.float32 or value.shape[:1] != (examples,):
        found = f"{value.dtype}{list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise InvalidJob(
            f"the activations at {where} are {found}",
            code="split.cut",
            hint="cut where they are one float32 tensor whose first dimension counts the examples",
        )
    return TensorForm(NAME_OF[value.dtype], tuple(value.shape[1:]))
