"""`shoal algorithms`: what there is to choose from by name, and the fields of each."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.output import out
from shoal.cli.text import table

if TYPE_CHECKING:
    from rich.console import RenderableType


def algorithms(
    name: Annotated[str, typer.Argument(metavar="NAME", help="show only this one", show_default=False)] = "",
) -> None:
    """List algorithms, schedules, filters, selections and ways of mixing, with their fields and defaults."""
    from shoal.core.errors import ShoalError
    from shoal.plugins import KINDS, PEER_KINDS, suggestion

    kinds = {**KINDS, **PEER_KINDS}
    found = [
        describe(what, key, kind) for what, known in kinds.items() for key, kind in known().items() if name in ("", key)
    ]
    if not found:
        every = [key for known in kinds.values() for key in known()]
        raise ShoalError(
            f"no algorithm, schedule, filter, selection or way of mixing is called {name!r}",
            code="usage.name",
            hint=suggestion(name, every),
        )
    shown: list[RenderableType] = []
    for one in found:
        rows = table("field", "type", "default", "meaning", right=["default"], prose=("type", "meaning"))
        for field in one["fields"]:
            rows.add_row(field["name"], field["type"], str(field["default"]), field["about"])
        shown += [f"\n[bold]{one['kind']} {one['name']}[/]  {one['title']}\n[dim]{one['about']}[/]", rows]
    out.answer({"plugins": found}, *shown)


def describe(what: str, name: str, kind: type[Any]) -> dict[str, Any]:
    """One of them, as the envelope has it."""
    from shoal.plugins import field_notes
    from shoal.spec import settings_of

    notes = field_notes(kind)
    fields = [
        {"name": field, "type": type_, "default": default, "about": notes.get(field, "")}
        for field, type_, default in settings_of(kind)
    ]
    about = (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " ")
    return {"kind": what, "name": name, "title": getattr(kind, "title", ""), "about": about, "fields": fields}
