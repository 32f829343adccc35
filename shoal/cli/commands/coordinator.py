"""`shoal coordinator`: a coordinator on this machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.terminal.output import log_level, out
from shoal.cli.terminal.text import pairs, safe
from shoal.core.errors import ShoalError
from shoal.extras import not_installed

ANYWHERE = ("0.0.0.0", "::", "")  # noqa: S104 - compared with, not listened on

if TYPE_CHECKING:
    from shoal_coordinator.settings import Settings


def coordinator(
    host: Annotated[
        str | None, typer.Option(help="address to listen on; 0.0.0.0 for all (default 127.0.0.1)", show_default=False)
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="port to listen on; 0: any free one (default 8080)", show_default=False),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="folder for the database and all models (default ./shoal-data)", show_default=False),
    ] = None,
    blobs: Annotated[
        str | None,
        typer.Option(metavar="URL", help="store of models and updates (default: the data folder)", show_default=False),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="certificate chain (PEM), for https", show_default=False)
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="its private key (PEM)", show_default=False)] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="any other setting: see shoal config show", show_default=False),
    ] = None,
) -> int:
    """Start a coordinator and serve until Ctrl-C.

    Example: shoal coordinator --host 0.0.0.0 --data /srv/shoal --set models_kept=100

    The first start creates an operator token in DATA/operator.token. Ctrl-C ends gracefully, a second one at once;
    neither loses anything.
    """
    from shoal.cli.terminal.values import assignments
    from shoal.memory import collect_seldom

    collect_seldom()
    run = _runner()
    from shoal.configuration import load
    from shoal.runtime.observability import logs
    from shoal_coordinator.settings import Settings

    named = {"host": host, "port": port, "data": data, "blobs": blobs, "tls_cert": tls_cert, "tls_key": tls_key}
    given = assignments(change or [], "--set") | {key: value for key, value in named.items() if value is not None}
    refuse_unknown(given, Settings.model_fields)
    settings = load(Settings, "coordinator", config=out.flags.config, given=given)
    secret = None if settings.operator_token else settings.data.absolute() / "operator.token"
    logs.configure("coordinator", level=log_level())
    address = address_of(settings)

    def listens(port: int) -> None:
        nonlocal address
        address = address_of(settings.model_copy(update={"port": port}))
        announce(settings, address, secret)

    with private():
        code = run(settings, listens)
    if code == 0:
        out.answer({"address": address, "data": settings.data, "token_file": secret})
    return code


@contextmanager
def private() -> Iterator[None]:
    """Make files that the block creates private to this user: the database holds updates and credentials."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _runner() -> Callable[[Settings, Callable[[int], None]], int]:
    """Return the function that runs a coordinator. Raises `ShoalError` when the extra is not installed."""
    try:
        from shoal_coordinator.main import run
    except ModuleNotFoundError as error:
        raise not_installed(error, "coordinator", "a coordinator") from None
    return run


def refuse_unknown(given: Iterable[str], known: Collection[str]) -> None:
    """Raise `ShoalError` for an unknown setting, with the nearest known one."""
    unknown = [key for key in given if key not in known]
    if unknown:
        from shoal.plugins import suggestion

        hint = suggestion(unknown[0], known, "shoal config show lists all settings")
        raise ShoalError(f"--set {unknown[0]}: no such setting", code="usage.name", hint=hint)


def address_of(settings: Settings) -> str:
    """Return the coordinator's URL on this machine."""
    host = "127.0.0.1" if settings.host in ANYWHERE else settings.host
    host = f"[{host}]" if ":" in host else host
    return f"{'https' if settings.tls_cert else 'http'}://{host}:{settings.port}"


def announce(settings: Settings, address: str, secret: Path | None) -> None:
    """Print addresses and next steps. `secret` is the file with the new operator's token, if one was created."""
    from shoal_dashboard import TO_BUILD, assets

    rows = [("address", f"{address}  [dim](dashboard and API; Ctrl-C ends)[/]")]
    if settings.host in ANYWHERE:
        rows.append(
            ("elsewhere", f"{address.replace('127.0.0.1', socket.gethostname())}  [dim](if that name is known)[/]")
        )
    rows += [
        ("data", safe(settings.data.absolute())),
        ("operators", f"export SHOAL_CLIENT__TOKEN_FILE={safe(secret)}" if secret else "the token that was given"),
        ("nodes", f"shoal token create --url {address}  [dim](then shoal join on each machine)[/]"),
    ]
    if assets() is None:
        rows.append(("dashboard", f"[yellow]not in this installation[/]  [dim]({TO_BUILD})[/]"))
    out.notice(pairs(rows))
