"""`shoal peer export`: the model that a peer holds, as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from shoal.cli.terminal.output import out
from shoal.cli.terminal.text import safe, size
from shoal.core.errors import ShoalError
from shoal.core.errors.phrases import counted

Force = Annotated[bool, typer.Option("--force", "-f", help="overwrite the file")]


def export(
    folder: Annotated[Path, typer.Argument(help="folder of this peer", show_default=False)],
    *,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="file of the model (default NAME.safetensors)", show_default=False),
    ] = None,
    force: Force = False,
) -> None:
    """Write a peer's current model as a safetensors file, also while the peer runs.

    Example: shoal peer export digits-peers/a -o digits.safetensors
    """
    path = output or Path(f"{folder.resolve().name}.safetensors")
    check_vacant(path, force=force)
    found = save(folder, path)
    out.answer({"model": found}, line(found))


def check_vacant(path: Path | None, *, force: bool) -> None:
    """Raise `ShoalError` when the file exists or its folder does not."""
    if path is None:
        return
    if path.exists() and not force:
        raise ShoalError(f"{path} exists", code="usage.exists", hint="choose another file, or add --force")
    if not path.absolute().parent.is_dir():
        raise ShoalError(f"there is no folder {path.parent}", code="usage.folder", hint="make it first")


def save(folder: Path, path: Path) -> dict[str, Any]:
    """Write the model of a peer and return its description. Raises `ShoalError`."""
    from shoal_peer.model_file import held_model, write_model

    held = held_model(folder)
    nbytes, digest = write_model(held.model, path)
    return {
        "path": path,
        "bytes": nbytes,
        "sha256": digest,
        "local_rounds": held.local_rounds,
        "rounds_by_peer": held.rounds_by_peer,
    }


def line(found: dict[str, Any]) -> str:
    """Return a description of a written model."""
    holds = ", ".join(f"{safe(node)} {count}" for node, count in found["rounds_by_peer"].items()) or "none"
    rounds = counted(found["local_rounds"], "local round")
    written = f"{safe(found['path'])}: {size(found['bytes'])}, sha256 {found['sha256']}"
    return f"{written}\nafter {rounds} of this peer; it holds rounds of {holds}"
