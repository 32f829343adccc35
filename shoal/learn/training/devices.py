"""Selection and description of the device, and how it computes."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from shoal.core.errors import InvalidJob

RESIDENT_BYTES = 1 << 30
"""Bytes of data that stay on a device whose free memory is not known."""

KINDS = "auto, cpu, cuda, cuda:0, cuda:1, … or mps"


def resolve(name: str = "auto") -> torch.device:
    """Return the device of a name; "auto" is the first available of cuda, mps and cpu, and of several cards the one
    with the most free memory.

    Raises `InvalidJob` with the code "device.unknown" for an unknown name, "device.missing" for a device that this
    machine or this build of torch does not have.
    """
    text = name.strip().lower()
    found = re.fullmatch(r"auto|cpu|mps|cuda(?::(\d{1,3}))?", text)
    if found is None:
        raise InvalidJob(f"{name!r} is not a device", code="device.unknown", hint=f"use {KINDS}")
    if text == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", max(range(torch.cuda.device_count()), key=_free_bytes))
        text = "mps" if torch.backends.mps.is_available() else "cpu"
    if text == "mps" and not torch.backends.mps.is_available():
        raise InvalidJob(
            "this machine has no Metal device, or this build of torch cannot use it",
            code="device.missing",
            hint="use device auto or cpu",
        )
    if text.startswith("cuda"):
        return _cuda(int(found[1] or 0))
    return torch.device(text)


def _free_bytes(index: int) -> int:
    """Return the free memory of a card, by NVIDIA's library if it is there: to open a card takes some of it."""
    if torch.cuda.device_count() == 1:
        return 0
    try:
        return int(torch.cuda.get_device_properties(index).total_memory) - torch.cuda.device_memory_used(index)
    except (ImportError, RuntimeError):
        return int(torch.cuda.mem_get_info(index)[0])


def resident_limit(device: torch.device) -> int:
    """Return the bytes of data that may stay on a device: half of a card's free memory."""
    return int(torch.cuda.mem_get_info(device)[0]) // 2 if device.type == "cuda" else RESIDENT_BYTES


def _cuda(index: int) -> torch.device:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        reason = "this build of torch has no CUDA" if torch.version.cuda is None else "no usable NVIDIA GPU was found"
        raise InvalidJob(f"device cuda: {reason}", code="device.missing", hint="use device auto or cpu")
    if index >= count:
        raise InvalidJob(
            f"there is no cuda:{index}: this machine has {count} NVIDIA GPU{'s' if count > 1 else ''}, counted from 0",
            code="device.missing",
            hint=f"use cuda:{count - 1}, or auto",
        )
    return torch.device("cuda", index)


def release(device: torch.device) -> None:
    """Give back memory that no tensor uses, so that an idle node leaves it to others."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


@contextmanager
def arithmetic(*, deterministic: bool, tf32: bool | None) -> Iterator[None]:
    """Choose among a GPU's ways to compute in a block; `tf32` None: as torch is set. Restores torch's settings.

    Raises `RuntimeError` in the block for an operation that has no deterministic form, as torch does.
    """
    if not deterministic and tf32 is None:
        yield
        return
    cudnn, strict = torch.backends.cudnn, torch.are_deterministic_algorithms_enabled()
    before = torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic
    try:
        if tf32 is not None:
            torch.set_float32_matmul_precision("high" if tf32 else "highest")
            cudnn.allow_tf32 = tf32
        if deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch demands it before the first product
            torch.use_deterministic_algorithms(True)
            cudnn.benchmark, cudnn.deterministic = False, True
        yield
    finally:
        torch.use_deterministic_algorithms(strict)
        torch.set_float32_matmul_precision(before[0])
        cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic = before[1:]


def describe(device: torch.device) -> dict[str, str | int]:
    """Return the description of a device: "device", "name", and "memory_bytes" (0 if unknown)."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return {"device": str(device), "name": properties.name, "memory_bytes": int(properties.total_memory)}
    return {
        "device": str(device),
        "name": platform.machine() or "unknown",
        "memory_bytes": _memory_bytes(),
    }


def _memory_bytes() -> int:
    names = getattr(os, "sysconf_names", {})
    if "SC_PHYS_PAGES" not in names or "SC_PAGE_SIZE" not in names:
        return 0
    return max(0, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
