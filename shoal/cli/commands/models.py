"""`shoal models`, `shoal promote`, `shoal demote`: models of a job and their labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.terminal.options import Job, Token, Url, Why
from shoal.cli.terminal.output import out
from shoal.cli.terminal.text import number, percent, safe, size, table

if TYPE_CHECKING:
    from rich.table import Table

Label = Annotated[str, typer.Option(help="the label")]


def models(
    job: Job,
    *,
    everything: Annotated[bool, typer.Option("--all", help="also versions whose file was deleted")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="number of models")] = 20,
    url: Url = None,
    token: Token = None,
) -> None:
    """List a job's models, newest first: size, hash, metrics and labels.

    Example: shoal models digits
    """
    from shoal.cli.connection import connect
    from shoal.client.api import segment

    with connect(url, token) as api:
        found = api.get(f"/jobs/{segment(job)}/models", limit=limit, kept=str(not everything).lower())
    rows = found["models"]
    shown: list[Any] = [_table(rows)] if rows else [f"{safe(job)} has no model yet"]
    if found["next"] is not None:
        shown.append(f"[dim]and older ones: --limit {min(1000, 5 * limit)}[/]")
    out.answer({"models": rows, "more": found["next"] is not None}, *shown)


def _table(rows: list[dict[str, Any]]) -> Table:
    columns = ("version", "labels", "accuracy", "loss", "size", "closed", "sha256")
    shown = table(*columns, right=("version", "accuracy", "loss", "size"), spare=("sha256", "closed", "loss"))
    for row in rows:
        labels = ", ".join(f"[bold]{safe(one['label'])}[/]" for one in row["labels"])
        labels += " [dim]checkpoint[/]" if row["checkpoint"] else ""
        shown.add_row(
            str(row["version"]),
            (labels if row["kept"] else f"{labels} [dim]deleted[/]").strip(),
            percent(_of(row, "accuracy")),
            number(_of(row, "loss")),
            size(row["bytes"]),
            row["closed_at"][:19].replace("T", " "),
            row["digest"][:12],
        )
    return shown


def _of(row: dict[str, Any], what: str) -> Any:
    """Return a metric as measured at the coordinator, else by nodes."""
    return next(
        (row["metrics"][name] for where in ("held_out", "eval") if (name := f"{where}/{what}") in row["metrics"]), None
    )


def promote(
    job: Job,
    version: Annotated[str, typer.Argument(metavar="VERSION", help="a number, best, last, or another label")],
    *,
    label: Label = "production",
    why: Why = "",
    url: Url = None,
    token: Token = None,
) -> None:
    """Move a label ("production" unless another is named) to a version.

    Example: shoal promote digits best --why "passed the audit"

    A labeled model is kept: shoal export JOB --version production
    """
    from shoal.cli.connection import connect
    from shoal.client.api import segment
    from shoal.client.model_versions import resolve_version

    with connect(url, token) as api:
        chosen = resolve_version(api, job, version)
        found = api.put(f"/jobs/{segment(job)}/labels/{segment(label)}", {"version": chosen, "why": why})
    out.answer({"job": found}, f"{safe(label)}: version {found['labels'][label]}")


def demote(
    job: Job,
    *,
    label: Label = "production",
    why: Why = "",
    url: Url = None,
    token: Token = None,
) -> None:
    """Remove a label. The coordinator may then delete that model as it does other old ones.

    Example: shoal demote digits --label candidate
    """
    from shoal.cli.connection import connect
    from shoal.client.api import segment

    with connect(url, token) as api:
        found = api.delete(f"/jobs/{segment(job)}/labels/{segment(label)}", why=why)
    out.answer({"job": found}, f"no version of {safe(job)} is called {safe(label)} any longer")
