"""The units of a sharded model: modules whose parameters are gathered together, while they compute."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

from shoal.core.errors import InvalidJob

CODE = "learner.shards"
SMALL = 0.01
"""A module with less than this fraction of the parameters of the largest one is not a unit of its own: each gathering
takes time."""
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def units_of(module: nn.Module, names: Sequence[str], layers: Sequence[str]) -> list[str]:
    """Return the names of the units except the module itself, those inside of others first.

    `layers`: those that compute in shards, so that nothing of them is gathered.

    Raises `InvalidJob` for names or modules that torch cannot shard.
    """
    known = dict(module.named_modules())
    for name in names:
        if name not in known or not name:
            near = ", ".join(list(known)[1:6])
            raise InvalidJob(f"the model has no module {name!r}", code=CODE, hint=f"name modules such as {near}")
        if isinstance(known[name], nn.ModuleList | nn.ModuleDict) or not _has_parameters(known[name]):
            text = f"module {name} is a {type(known[name]).__name__} that does not compute with parameters of its own"
            raise InvalidJob(text, code=CODE, hint="name modules that have parameters and a forward method")
    found = list(dict.fromkeys(names)) or _large({name: one for name, one in _repeated(module) if name not in layers})
    if not found and not layers:
        raise InvalidJob(
            "the model has no modules in an nn.Sequential or nn.ModuleList that could be gathered one by one",
            code=CODE,
            hint='name some: modules=("encoder", "decoder")',
        )
    found.sort(key=lambda name: -name.count("."))
    _check(module, [*layers, *found])
    return found


def _repeated(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules with parameters in containers, except those inside of them."""
    for name, child in module.named_children():
        if isinstance(module, _CONTAINERS) and not isinstance(child, _CONTAINERS):
            if _has_parameters(child):
                yield prefix + name, child
        else:
            yield from _repeated(child, f"{prefix}{name}.")


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _large(modules: dict[str, nn.Module]) -> list[str]:
    sizes = {name: sum(one.numel() for one in module.parameters()) for name, module in modules.items()}
    return [name for name, size in sizes.items() if size >= SMALL * max(sizes.values())]


def _check(module: nn.Module, units: Sequence[str]) -> None:
    """Raise `InvalidJob` for parameters that cannot be divided among these units."""
    owners: dict[int, str] = {}
    kinds: dict[str, set[object]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        unit = next((one for one in units if name.startswith(f"{one}.")), "")
        if owners.setdefault(id(parameter), unit) != unit:
            text = f"{_title(unit)} shares the parameter {name} with another unit"
            raise InvalidJob(text, code=CODE, hint="name modules that have all users of a parameter inside")
        if not parameter.ndim:
            raise InvalidJob(
                f"{name} is a single number, which cannot be divided", code=CODE, hint="give it shape (1,)"
            )
        if parameter.requires_grad:
            kinds.setdefault(unit, set()).add(parameter.dtype)
    for unit, found in kinds.items():
        if len(found) > 1:
            types = ", ".join(sorted(map(str, found)))
            text = f"{_title(unit)} has parameters of the types {types}"
            raise InvalidJob(text, code=CODE, hint="use one type in each module that modules= names")


def _title(unit: str) -> str:
    return f"module {unit}" if unit else "the rest of the model"
