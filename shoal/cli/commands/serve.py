"""`shoal serve`: answers from a trained model over HTTP."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.terminal.options import Device, Token, Url, spread
from shoal.cli.terminal.output import log_level, out
from shoal.cli.terminal.text import pairs, safe
from shoal.cli.terminal.values import plain_assignments
from shoal.core.errors import InvalidJob, ShoalError
from shoal.extras import not_installed

if TYPE_CHECKING:
    from shoal.serving.cascade_pump import CascadePump
    from shoal.serving.served_model import ServedModel

LEVEL_TIMEOUT_S = 2.0
"""Seconds to wait for each level above."""
SUFFIX = ".safetensors"


@dataclass(frozen=True)
class ServedLearner:
    """The learner whose model answers."""

    learner: Annotated[str, typer.Option(help="your learner: FILE.py:NAME", show_default=False)]
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="KEY=VALUE", help="option of the learner; repeatable", show_default=False),
    ] = None
    device: Device = None


@dataclass(frozen=True)
class ListenOptions:
    """Address, access and refreshing of the server."""

    host: Annotated[str, typer.Option(help="address to listen on; others than this machine need --access-token")] = (
        "127.0.0.1"
    )
    port: Annotated[int, typer.Option(min=0, max=65535, help="port to listen on; 0: any free one")] = 8090
    access_token: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="file with the bearer token that requests must send", show_default=False),
    ] = None
    refresh: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="how often to ask which version the label names")
    ] = 10.0


@dataclass(frozen=True)
class AboveOptions:
    """The level above."""

    up: Annotated[
        str | None,
        typer.Option(metavar="URL", help="address of `shoal serve` at the level above", show_default=False),
    ] = None
    up_token: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="file with the access token of the level above", show_default=False),
    ] = None
    timeout_s: Annotated[
        float | None,
        typer.Option(min=0.1, help="seconds to wait for it (default: 2 for each level above)", show_default=False),
    ] = None


@dataclass(frozen=True)
class LevelOptions:
    """The level of a network with exits that is served."""

    level: Annotated[
        str,
        typer.Option(metavar="LEVEL", help="serve a level of a network with exits: device, edge or cloud"),
    ] = ""
    threshold: Annotated[
        float | None,
        typer.Option(help="answer where the exit's normalized entropy is at most this", show_default=False),
    ] = None


@spread
def serve(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="JOB, JOB@LABEL (production, unless another is named; best, last or a number) or FILE.safetensors",
            show_default=False,
        ),
    ],
    *,
    of: ServedLearner,
    listen: ListenOptions,
    at: LevelOptions,
    above: AboveOptions,
    url: Url = None,
    token: Token = None,
) -> int:
    """Answer from a trained model over HTTP until Ctrl-C. A label that moves takes effect within seconds.

    Example: shoal serve digits@production --learner mine.py:learner
    Example: shoal serve digits --learner mine.py:learner --level device --threshold 0.2 --up http://cloud:8090
    """
    from shoal.learn.loading import load_learner
    from shoal.runtime.http.server.allowed_hosts import is_loopback
    from shoal.runtime.observability import logs
    from shoal.serving.served_model import ServedModel

    try:
        from shoal.runtime.http.server.serving import listen as bound
    except ModuleNotFoundError as error:
        raise not_installed(error, "peer", "shoal serve") from None

    secret = read_token(listen.access_token, "--access-token")
    if not secret and not is_loopback(listen.host):
        text = f"--host {listen.host} lets other machines ask"
        raise InvalidJob(text, code="usage.invalid", hint="add --access-token FILE with a token of your choice")
    learner = load_learner(of.learner, plain_assignments(of.option or [], "--option"), device=of.device or "")
    served = ServedModel(learner)
    logs.configure("serve", level=log_level())
    with ExitStack() as until_the_end:
        refresh = open_model(until_the_end, served, model, (url, token))
        app = _app(served, at, above)
        sock = until_the_end.enter_context(bound(listen.host, listen.port, "port with --port"))
        assert served.version is not None
        number = served.version.version
        route = "features" if at.level not in ("", "device") else "predict"
        rows = [
            ("model", safe(model) if number is None else f"{safe(served.version.job)}, version {number}"),
            ("address", f"http://{listen.host}:{sock.getsockname()[1]}/{route}  [dim](Ctrl-C ends)[/]"),
        ]
        out.notice(pairs(rows))
        asyncio.run(_run(app, sock, (listen.host, secret), refresh, listen.refresh))
    return 0


def read_token(path: Path | None, option: str) -> str:
    """Return the access token in a file; empty without one. Raises `ShoalError`, which names the option."""
    if path is None:
        return ""
    from shoal.configuration import read_secret

    found = read_secret(path, option)
    if not found.isascii() or len(found.split()) != 1:
        raise ShoalError(f"{path} holds no token", code="usage.invalid", hint="write one word into it")
    return found


def _app(served: ServedModel, at: LevelOptions, above: AboveOptions) -> Any:
    """Return the application: of the whole model, or of a level."""
    if at.level:
        from shoal.serving.level_app import create_level_app

        return create_level_app(make_pump(served, at.level, at.threshold, above))
    from shoal.serving.prediction_app import create_app

    if at.threshold is not None or above != AboveOptions():
        text = "--threshold, --up and what belongs to them are for one level"
        raise InvalidJob(text, code="usage.invalid", hint="add --level device, edge or cloud")
    return create_app(served)


def make_pump(served: ServedModel, name: str, threshold: float | None, above: AboveOptions) -> CascadePump:
    """Return the pump of a level. Raises `InvalidJob` if threshold or address are missing, or do not belong to it."""
    from shoal.core.exits.cascade_level import CascadeLevel
    from shoal.serving.cascade_pump import CascadePump
    from shoal.serving.level_above import LevelAbove
    from shoal.serving.served_level import ServedLevel

    level = ServedLevel(served, name)
    levels_above = len(level.levels) - 1 - level.number
    if (above.up is not None) != (levels_above > 0) or (threshold is not None) != (levels_above > 0):
        text = f"the {name} answers everything" if not levels_above else f"the {name} has a level above"
        hint = "leave --up and --threshold out" if not levels_above else "add --up URL and --threshold"
        raise InvalidJob(text, code="usage.invalid", hint=hint)
    timeout_s = LEVEL_TIMEOUT_S * levels_above if above.timeout_s is None else above.timeout_s
    machine = CascadeLevel(level.number, len(level.levels), threshold, timeout_s)
    if above.up is None:
        return CascadePump(machine, level)
    token = read_token(above.up_token, "--up-token")
    return CascadePump(machine, level, LevelAbove(above.up, token, level.number + 1, timeout_s).answer)


def open_model(
    until_the_end: ExitStack, served: ServedModel, model: str, access: tuple[str | None, str | None]
) -> Callable[[], None] | None:
    """Load the named model, and return the function that renews it; None for a file."""
    from shoal.cli.connection import connect
    from shoal.model_file import load_model
    from shoal.serving.model_follower import ModelFollower
    from shoal.serving.served_model import ServedVersion

    if model.endswith(SUFFIX):
        served.load(load_model(model), ServedVersion(Path(model).name))
        return None
    job, _, label = model.partition("@")
    follower = ModelFollower(served, until_the_end.enter_context(connect(*access)), job, label or "production")
    follower.load()
    return follower.refresh


async def _run(
    app: Any,
    sock: socket.socket,
    guard: tuple[str, str],
    refresh: Callable[[], None] | None,
    refresh_s: float,
) -> None:
    """Answer requests until a signal arrives. `guard`: the address that is listened on, and the access token."""
    from shoal.runtime.threads import in_thread
    from shoal.serving.prediction_app import serve_predictions

    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with serve_predictions(app, sock, *guard):
        while not stop.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), refresh_s)
            if refresh is not None and not stop.is_set():
                await in_thread(refresh)
