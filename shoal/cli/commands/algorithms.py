"""`shoal algorithms`: the installed algorithms, schedules, filters, selections and mixings."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.terminal.output import out
from shoal.cli.terminal.text import table

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


def algorithms(
    name: Annotated[str, typer.Argument(metavar="NAME", help="show only this one", show_default=False)] = "",
) -> None:
    """List algorithms, schedules, filters, selections and mixings, or show the fields of one."""
    from shoal.core.errors import ShoalError
    from shoal.plugins import KINDS, PEER_KINDS, suggestion

    kinds = {**KINDS, **PEER_KINDS}
    found = [
        describe(what, key, kind)
        for what, known in kinds.items()
        for key, kind in sorted(known().items())
        if name in ("", key)
    ]
    if not found:
        every = [key for known in kinds.values() for key in known()]
        raise ShoalError(
            f"no algorithm, schedule, filter, selection or way of mixing is called {name!r}",
            code="usage.name",
            hint=suggestion(name, every),
        )
    if name:
        out.answer({"plugins": found}, *(part for one in found for part in in_full(one)))
    else:
        out.answer({"plugins": found}, overview(found), "[dim]fields and defaults: shoal algorithms NAME[/]")


def overview(found: list[dict[str, Any]]) -> Table:
    """Return a table with one row for each."""
    made = table("kind", "name", "paper", "description", prose=("paper", "description"))
    for before, one in zip([None, *found], found, strict=False):
        kind = one["kind"] if before is None or before["kind"] != one["kind"] else ""
        made.add_row(kind, f"[bold]{one['name']}[/]", one["title"], one["about"])
    return made


def in_full(one: dict[str, Any]) -> list[RenderableType]:
    """Return one of them with its fields."""
    rows = table("field", "type", "default", "meaning", right=["default"], prose=("type", "meaning"))
    for field in one["fields"]:
        rows.add_row(field["name"], field["type"], str(field["default"]), field["about"])
    title = f"\n[bold]{one['kind']} {one['name']}[/]  {one['title']}\n[dim]{one['about']}[/]"
    needed = f"\n[dim]Needs of a learner: {', '.join(one['needs'])} (TorchLearner has it).[/]" if one["needs"] else ""
    return [title + needed, rows]


def describe(what: str, name: str, kind: type[Any]) -> dict[str, Any]:
    """Return one of them as JSON values."""
    from shoal.core.algorithm.capability import DECLARED
    from shoal.jobs.spec import settings_of
    from shoal.plugins import field_notes

    notes = field_notes(kind)
    fields = [
        {"name": field, "type": type_, "default": default, "about": notes.get(field, "")}
        for field, type_, default in settings_of(kind)
    ]
    about = (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " ")
    required = kind().required_capabilities if what == "algorithm" else ()
    needs = [DECLARED[capability] for capability in sorted(required) if capability in DECLARED]
    shown = {"kind": what, "name": name, "title": getattr(kind, "title", ""), "about": about}
    return {**shown, "needs": needs, "fields": fields}
