"""Models as safetensors files: `save_model`, `load_model`, and `opened`, which reads a file in canonical form.

weights = shoal.load_model("model.safetensors")                  # names and numpy arrays
network = shoal.load_model("model.safetensors", into=network())   # a torch module with these weights
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.errors import InvalidJob, InvalidPayload, StorageFailed
from shoal.core.model.tree import BASE_MODEL, FLOATS, METADATA, STATISTICS, Layout, Tree
from shoal.wire.payload import (
    PIECE_BYTES,
    header_length,
    open_payload,
    parse_header,
    parse_statistics,
    payload_layout,
    payload_pieces,
    read_header,
)

if TYPE_CHECKING:
    from torch import nn

    from shoal.learn.training.module_learner import ModuleLearner

    Module = TypeVar("Module", bound=nn.Module)

Pieces = Callable[[], Iterator[bytes]]


def save_model(model: Tree, path: str | Path) -> Path:
    """Write a safetensors file, whole or not at all, and return its path. Raises `StorageFailed`."""
    target = Path(path)
    is_device = target.exists() and not target.is_file()  # such as /dev/null, which must not become a file
    partial = target if is_device else target.with_name(f".{target.name}.part")
    try:
        with partial.open("wb") as file:
            for piece in payload_pieces({"model": model}):
                file.write(piece)
        if not is_device:
            partial.replace(target)
    except OSError as error:
        text, hint = f"{target}: {error.strerror}", "check folder and free space"
        raise StorageFailed(text, code="export.failed", hint=hint) from None
    finally:
        if not is_device and partial.parent.is_dir():
            partial.unlink(missing_ok=True)
    return target


def save_base(learner: ModuleLearner, path: str | Path) -> Path:
    """Write a learner's base model, the frozen tensors that nodes do not exchange, for `shoal run --base`.

    Raises `InvalidJob` for a learner without one, `StorageFailed`.
    """
    if not learner.weights.roles.base:
        raise InvalidJob("the model has no frozen tensors, so it has no base model", code="learner.base")
    return save_model(learner.weights.base(), path)


@overload
def load_model(path: str | Path) -> Tree: ...


@overload
def load_model(path: str | Path, into: Module, *, strict: bool = True) -> Module: ...


def load_model(path: str | Path, into: Module | None = None, *, strict: bool = True) -> Tree | Module:
    """Read a model that `shoal export`, `shoal simulate -o` or `Result.save` has written, or any safetensors file.

    Returns a mapping from names to numpy arrays (bfloat16 as float32 of the same values), or `into`: a torch module
    that then has these weights. `strict=False` leaves tensors of the module alone that the file lacks. Raises
    `InvalidPayload` for a file that holds no model, or not this module's.
    """
    with opened(Path(path)) as found:
        model = tree_slot(open_payload(b"".join(found.pieces())), "model")
    if into is None:
        return model
    from shoal.learn.training.weights import load_into

    return load_into(into, model, strict=strict)


@dataclass(frozen=True)
class StartModel:
    """A payload to upload: SHA-256, length in bytes, and its pieces, which can be read repeatedly."""

    digest: str
    nbytes: int
    pieces: Pieces


@contextmanager
def opened(path: Path, *, base: bool = False) -> Iterator[StartModel]:
    """Return a file in canonical order, without foreign metadata. Raises `InvalidPayload` for another format.

    `base`: the file is a base model, so that all metadata are left out.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as source:
            spans = [(0, len(source))] if not base and _is_canonical(source) else None
            header, spans = (b"", spans) if spans else _sorted(source, base=base)

            def pieces() -> Iterator[bytes]:
                yield header
                for start, stop in spans:
                    for place in range(start, stop, PIECE_BYTES):
                        yield source[place : min(place + PIECE_BYTES, stop)]

            digest = hashlib.sha256()
            for piece in pieces():
                digest.update(piece)
            yield StartModel(digest.hexdigest(), len(header) + sum(stop - start for start, stop in spans), pieces)
    except (OSError, ValueError) as error:  # ValueError: an empty file can't be mapped
        why = getattr(error, "strerror", None) or error
        raise InvalidPayload(f"{path}: {why}", code="payload.unreadable", hint="give a safetensors file") from None
    except InvalidPayload as error:
        raise InvalidPayload(f"{path}: {error.message}", code=error.code, hint="give a safetensors file") from None


def _is_canonical(source: mmap.mmap) -> bool:
    try:
        model = read_header(source).get("model")
    except InvalidPayload:
        return False
    if model is None or model.statistics:
        return True
    return not torch_statistics({leaf.name: leaf.dtype for leaf in model.leaves})


def torch_statistics(dtypes: Mapping[str, str]) -> list[str]:
    """Return the statistics of torch's BatchNorm among tensors, for a file of another program, which marks none."""
    found = []
    for name in dtypes:
        prefix = name.removesuffix("running_mean")
        pair = [name, f"{prefix}running_var"]
        if prefix != name and (not prefix or prefix.endswith(".")) and all(dtypes.get(one) in FLOATS for one in pair):
            found += pair
    return found


def _sorted(source: mmap.mmap, *, base: bool) -> tuple[bytes, list[tuple[int, int]]]:
    """Return the canonical header, and the place of each tensor in the file, in the order of the header."""
    start = 8 + header_length(source[0:8])
    try:
        entries: dict[str, Any] = json.loads(source[8:start])
        metadata = entries.pop(METADATA, None) or {}
        tensors = [(name, one["dtype"], tuple(one["shape"])) for name, one in entries.items()]
        found = parse_statistics(metadata[STATISTICS]) if STATISTICS in metadata else None
        statistics = torch_statistics({name: dtype for name, dtype, _ in tensors}) if found is None else found
        layout = Layout.of(tensors) if base else Layout.of(tensors, str(metadata.get(BASE_MODEL, "")), statistics)
        places = {name: tuple(start + int(offset) for offset in one["data_offsets"]) for name, one in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidPayload(f"its header can't be read: {error}", code="payload.header") from None
    header = payload_layout({"model": layout}).header
    spans = []
    for leaf in layout.leaves:
        first, last = places[leaf.name]
        if last - first != leaf.stop - leaf.start or not start <= first <= last <= len(source):
            raise InvalidPayload(f"tensor {leaf.name!r} doesn't fill its place", code="payload.length")
        spans.append((first, last))
    parse_header(header)  # the limits that the coordinator will apply
    return header, spans
