"""The form of a model: its names, types and shapes without its numbers, and how two forms differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shoal.core.errors.phrases import counted


@dataclass(frozen=True)
class ModelForm:
    """A model's form, whatever its numbers: equal for two models exactly if their layouts are."""

    digest: str
    """SHA-256 of the names, types, shapes and kinds of its tensors, and of the base model's digest."""
    tensors: int
    elements: int
    base_model: str = ""
    """As in `Layout`."""

    def beside(self, other: ModelForm) -> str:
        """Return how this differs from another: "2 tensors, not 7"."""
        if self.tensors != other.tensors:
            return f"{counted(self.tensors, 'tensor')}, not {other.tensors}"
        if self.elements != other.elements:
            return f"{self.elements:,} parameters, not {other.elements:,}"
        if self.base_model != other.base_model:
            return f"{base_name(self.base_model)}, not {base_name(other.base_model)}"
        return "tensors of other names, types, shapes or kinds"


def base_name(digest: str) -> str:
    """Return a base model's name for people: "base model 3f2a9c01d4e7"."""
    return f"base model {digest[:12]}" if digest else "no base model"


RANKS = "the ranks of adapters must be equal on all nodes"


def is_adapter(name: str) -> bool:
    """Return whether a tensor is one of a low-rank pair by PEFT's names; its inner size is the rank."""
    return ".lora_" in name


def differences(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Return each tensor of `Layout.shown` that another has not, or differently: "bias is F32[2], not F32[3]"."""
    found = [RANKS] if any(is_adapter(name) and other.get(name, one[name]) != one[name] for name in one) else []
    for name in sorted({*one, *other}):
        if name not in one:
            found.append(f"{name} is missing")
        elif name not in other:
            found.append(f"{name} is one too many")
        elif one[name] != other[name]:
            found.append(f"{name} is {one[name]}, not {other[name]}")
    return found
