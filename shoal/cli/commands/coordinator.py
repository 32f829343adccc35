"""`shoal coordinator`: start one here."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.output import log_level, out
from shoal.cli.text import pairs, safe
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
        typer.Option(metavar="URL", help="where models and updates lie (default: in that folder)", show_default=False),
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
    """Start a coordinator, and serve until Ctrl-C.

    Example: shoal coordinator --host 0.0.0.0 --data /srv/shoal --set models_kept=100

    The first start makes an operator token in DATA/operator.token. Ctrl-C ends gracefully: nothing is lost, at whatever
    moment; a second Ctrl-C ends at once.
    """
    from shoal.cli.values import assignments
    from shoal_coordinator.memory import keep_big_blocks, search_seldom

    keep_big_blocks()
    search_seldom()
    run = _runner()
    from shoal.runtime import logs
    from shoal.settings import load
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
    """What is made meanwhile is nobody else's: the database has nodes' small updates, and who may come in."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _runner() -> Callable[[Settings, Callable[[int], None]], int]:
    """What runs a coordinator. Raises `ShoalError` where it was not installed."""
    try:
        from shoal_coordinator.serve import run
    except ModuleNotFoundError as error:
        raise not_installed(error, "coordinator", "a coordinator") from None
    return run


def refuse_unknown(given: Iterable[str], known: Collection[str]) -> None:
    """Raise for a setting that nobody knows, with the nearest one."""
    unknown = [key for key in given if key not in known]
    if unknown:
        from shoal.plugins import suggestion

        raise ShoalError(f"--set {unknown[0]}: no such setting", code="usage.name", hint=suggestion(unknown[0], known))


def address_of(settings: Settings) -> str:
    """Where a person on this machine finds it."""
    host = "127.0.0.1" if settings.host in ANYWHERE else settings.host
    host = f"[{host}]" if ":" in host else host
    return f"{'https' if settings.tls_cert else 'http'}://{host}:{settings.port}"


def announce(settings: Settings, address: str, secret: Path | None) -> None:
    """Say where everything is, and how it is used. `secret`: where the operators' token was put, if nobody gave one."""
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
