"""`shoal config show`: settings and their sources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.terminal.options import hand_down
from shoal.cli.terminal.output import out
from shoal.cli.terminal.text import safe, table

if TYPE_CHECKING:
    from pydantic import BaseModel

    from shoal.configuration import Origin

app = typer.Typer(help="Settings: show.")

_SECRET = ("token", "password", "secret", "webhook")
_PLAIN = ("endpoint", "region", "path_style", "sslmode")
"""Parameters of an address that are not secrets."""
HIDDEN = "********"


Origins = Annotated[bool, typer.Option("--origin", help="also show the source of each value")]


@app.callback(invoke_without_command=True)
def config(context: typer.Context, origin: Origins = False) -> None:
    """Show settings."""
    hand_down(context, origin=origin)
    if context.invoked_subcommand is None:
        show(origin)


@app.command("show")
def show(origin: Origins = False) -> None:
    """Show every setting.

    Values come from options, SHOAL_SECTION__KEY in the environment, one TOML file, and defaults, in this order.
    """
    from shoal.configuration import config_file

    found = every_setting()
    path = config_file(out.flags.config)
    columns = ("setting", "value", *(["from"] if origin else []))
    rows = table(*columns, prose=("value", "from"))
    for one in found:
        rows.add_row(f"{one.section}.{one.key}", shown(one), *([safe(one.source)] if origin else []))
    settings = [
        {"section": one.section, "key": one.key, "value": shown(one, plain=True), "source": one.source} for one in found
    ]
    data: dict[str, Any] = {"file": str(path) if path else None, "settings": settings}
    out.answer(data, f"[dim]file: {safe(path or 'none (shoal.toml here, or --config FILE)')}[/]", rows)


def sections() -> dict[str, type[BaseModel]]:
    """Return the settings models of the installed packages by section."""
    from shoal.configuration import ClientSettings, DataSettings
    from shoal_coordinator.settings import Settings
    from shoal_edge_client.settings import EdgeSettings

    return {"client": ClientSettings, "coordinator": Settings, "data": DataSettings, "edge": EdgeSettings}


def every_setting() -> list[Origin]:
    """Return all settings of all sections. Raises `ShoalError` for the first invalid one."""
    from shoal.configuration import origins

    return [one for name, kind in sections().items() for one in origins(kind, name, config=out.flags.config)]


def shown(one: Origin, *, plain: bool = False) -> Any:
    """Return a value as text, with secrets masked."""
    from pydantic import SecretStr

    secret = isinstance(one.value, SecretStr)
    value = one.value.get_secret_value() if secret else one.value
    if value and isinstance(value, str):
        if "://" in value:
            value = address(value, path="webhook" not in one.key)
        elif secret or any(word in one.key for word in _SECRET):
            value = HIDDEN
    if plain:
        return value
    return "[dim]–[/]" if value in (None, "") else safe(value)


def address(text: str, *, path: bool = True) -> str:
    """Return an address without credentials, without query parameters that may be secret, and without a secret path."""
    from urllib.parse import parse_qsl, quote, urlsplit, urlunsplit

    try:
        parts = urlsplit(text)
        fields = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        return HIDDEN
    place = parts.netloc.rpartition("@")[2]
    if "@" in parts.netloc:
        place = f"{HIDDEN}@{place}"
    query = "&".join(
        f"{quote(name)}={(address(value) if '://' in value else value) if name in _PLAIN else HIDDEN}"
        for name, value in fields
    )
    shown_path = parts.path if path or len(parts.path) < 2 else f"/{HIDDEN}"
    found = urlunsplit((parts.scheme, place, shown_path, "", ""))
    if not place and text.startswith(f"{parts.scheme}://"):  # as in sqlite:////path
        found = f"{parts.scheme}://{shown_path}"
    return f"{found}?{query}" if parts.query else found
