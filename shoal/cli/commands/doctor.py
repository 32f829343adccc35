"""`shoal doctor`: what could keep shoal from running here, each with its fix."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from shoal import __version__
from shoal.cli.output import out
from shoal.cli.program import FAILED, OK
from shoal.cli.text import safe, seconds, size, state, table
from shoal.core.errors import NotAllowed, ShoalError

if TYPE_CHECKING:
    from shoal.cli.api import Api

PYTHON_OLDEST = (3, 11)
SQLITE_SOUND = (3, 51, 3)
"""Before this, two connections that checkpoint at the same time can corrupt a WAL database (the WAL-reset bug)."""
FREE_BYTES_MIN = 2 * 10**9
FSYNC_S_MAX = 0.1
SKEW_S_MAX = 5.0
FULL = 0.8
"""The share of connections or files that is nearly all."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. `fix` says what to do when it isn't ok."""

    name: str
    state: Literal["ok", "warn", "fail"]
    found: str
    fix: str = ""


def doctor() -> int:
    """Look at this machine and the coordinator, and say how to mend what isn't right.

    Ends with 1 if something is wrong that keeps shoal from working; warnings don't count.
    """
    checks: list[Check] = []
    with out.progress("looking", len(CHECKS)) as advance:
        for done, check in enumerate(CHECKS):
            advance(done, check.__name__.replace("_", " "))
            try:
                checks += check()
            except ShoalError as error:
                checks.append(Check(check.__name__.replace("_", " "), "fail", error.message, error.hint))
    rows = table("", "check", "found", "what to do", prose=("found", "what to do"))
    for one in checks:
        rows.add_row(state(one.state), one.name, safe(one.found), safe(one.fix))
    bad = sum(one.state == "fail" for one in checks)
    verdict = f"[bold red]{bad} of {len(checks)} checks failed[/]" if bad else "[bold green]shoal can run here[/]"
    out.answer({"healthy": not bad, "checks": checks}, rows, verdict)
    return FAILED if bad else OK


def python() -> list[Check]:
    """The interpreter and shoal itself."""
    found = f"{'.'.join(map(str, sys.version_info[:3]))} at {sys.executable}"
    fine = sys.version_info[:2] >= PYTHON_OLDEST
    return [
        Check("shoal", "ok", __version__ + ("" if _installed("shoal") else ", run from its folder, not installed")),
        Check("python", "ok" if fine else "fail", found, "" if fine else "install Python 3.11 or newer"),
    ]


def torch() -> list[Check]:
    """PyTorch, and the device that `--device auto` would take."""
    try:
        import torch as found
    except ModuleNotFoundError:
        fix = "to use TorchLearner or held-out data here: pip install 'shoal[torch]'"
        return [Check("torch", "warn", "torch not installed", fix)]
    except ImportError as error:  # it is there and damaged
        return [Check("torch", "fail", str(error), "pip install --force-reinstall 'shoal[torch]'")]
    names = ["cpu"]
    if found.backends.mps.is_available():
        names.insert(0, "mps")
    if found.cuda.is_available():
        names = [f"cuda:{i} ({found.cuda.get_device_name(i)})" for i in range(found.cuda.device_count())] + names
    return [
        Check("torch", "ok", f"{found.__version__}, {found.get_num_threads()} threads"),
        Check("device", "ok", f"{names[0]}" + (f"; also {', '.join(names[1:])}" if names[1:] else "")),
    ]


def server_parts() -> list[Check]:
    """What a coordinator needs and an edge device doesn't."""
    missing = [name for name in ("fastapi", "uvicorn", "sqlalchemy", "alembic") if not importlib.util.find_spec(name)]
    if missing:
        fix = "to run a coordinator here: pip install 'shoal[coordinator]'"
        return [Check("coordinator", "warn", f"{', '.join(missing)} not installed", fix)]
    return [Check("coordinator", "ok", "can be started here"), _sqlite(), _dashboard()]


def _sqlite() -> Check:
    found = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info >= SQLITE_SOUND:
        return Check("sqlite", "ok", found)
    fix = "let no other program write to the database while a coordinator runs (WAL-reset bug before 3.51.3)"
    return Check("sqlite", "warn", found, fix)


def _dashboard() -> Check:
    from shoal_dashboard import TO_BUILD, assets

    if assets() is not None:
        return Check("dashboard", "ok", "built")
    return Check("dashboard", "warn", "not built: the coordinator has no pages", TO_BUILD)


def blobs() -> list[Check]:
    """Whether the store of models and updates takes and gives, if there is one beside the data folder."""
    if not importlib.util.find_spec("sqlalchemy"):
        return []
    from shoal.settings import load
    from shoal_coordinator.blobs.places import reach
    from shoal_coordinator.settings import Settings

    settings = load(Settings, "coordinator", config=out.flags.config)
    return [Check("blobs", "ok", f"{reach(settings).name} takes and gives")] if settings.blobs else []


def port() -> list[Check]:
    """Whether a coordinator could listen where it is set to."""
    from shoal.settings import load
    from shoal_coordinator.settings import Settings

    settings = load(Settings, "coordinator", config=out.flags.config)
    where = f"{settings.host}:{settings.port}"
    if is_free(settings.host, settings.port):
        return [Check("port", "ok", f"{where} is free")]
    return [
        Check("port", "warn", f"{where} is taken", "start another coordinator with --port, or stop what listens there")
    ]


def is_free(host: str, number: int) -> bool:
    """Whether something could listen on that port (0: always)."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        if os.name == "posix":  # as servers do; elsewhere the option means something else
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, number))
        except OSError:
            return False
    return True


def open_files() -> list[Check]:
    """Whether a coordinator here could have as many connections as it may."""
    from shoal.runtime.open_files import connections_within, raise_limit
    from shoal.settings import load
    from shoal_coordinator.settings import Settings

    limit, wanted = raise_limit(), load(Settings, "coordinator", config=out.flags.config).connections_max
    found = f"{limit} may be open, which leaves {connections_within(limit)} connections"
    if connections_within(limit) >= wanted:
        return [Check("open files", "ok", found)]
    fix = f"raise the hard limit of open files, or lower connections_max ({wanted}): more connections are refused"
    return [Check("open files", "warn", found, fix)]


def disk() -> list[Check]:
    """Space, and how long it takes until written bytes are safe."""
    from shoal.settings import load
    from shoal_coordinator.settings import Settings

    folder = load(Settings, "coordinator", config=out.flags.config).data.absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    found = f"{size(free)} free in {folder}"
    space = Check("disk", "ok", found)
    if free < FREE_BYTES_MIN:
        space = Check("disk", "warn", found, "free some, or choose another folder with --data")
    try:
        took = fsync_seconds(folder)
    except OSError as error:
        return [space, Check("writing", "fail", str(error), f"make {folder} writable, or choose another with --data")]
    slow = took > FSYNC_S_MAX
    fix = "each acknowledged report waits for this: choose a faster disk with --data" if slow else ""
    return [space, Check("fsync", "warn" if slow else "ok", f"{took * 1000:.1f} ms", fix)]


def fsync_seconds(folder: Path) -> float:
    """The median time of a small durable write in that folder."""
    took = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(5):
            started = time.perf_counter()
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
            took.append(time.perf_counter() - started)
    return sorted(took)[2]


def settings() -> list[Check]:
    """Whether all sections can be read."""
    from shoal.cli.config import every_setting
    from shoal.settings import config_file

    every_setting()
    return [Check("settings", "ok", str(config_file(out.flags.config) or "no file; defaults and environment"))]


def coordinator() -> list[Check]:
    """Whether the coordinator answers, takes the token, and agrees on the time."""
    from shoal.cli.api import connect
    from shoal.settings import DEFAULT_URL

    with connect() as api:
        try:
            skew, release = api.clock_skew_s(), api.get("/version")["version"]
        except ShoalError as error:
            meant = api.url != DEFAULT_URL
            fix = error.hint if meant else "shoal coordinator starts one; to use another: --url, SHOAL_CLIENT__URL"
            return [Check("reachable", "fail" if meant else "warn", error.message, fix)]
        checks = [Check("reachable", "ok", f"{api.url}, release {release}")]
        try:
            api.get("/jobs")
            checks.append(Check("credential", "ok", "accepted" if api.has_token else "none needed to look"))
            checks += _load(api)
        except NotAllowed as error:
            checks.append(Check("credential", "fail", error.message, error.hint))
    late = abs(skew) > SKEW_S_MAX
    fix = "set the clock of one of the two (NTP): times in logs and tokens' lives are off by that" if late else ""
    return [*checks, Check("clock", "warn" if late else "ok", f"{seconds(abs(skew))} apart", fix)]


def _load(api: Api) -> list[Check]:
    """How much of its connections and open files the coordinator uses, if it says so."""
    try:
        metrics = api.metrics()
    except ShoalError as error:
        return [Check("metrics", "warn", error.message, error.hint or "see the coordinator's log")]
    used = {"connections": ("shoal_connections", "shoal_connections_max")}
    used["coordinator's files"] = ("process_open_fds", "process_max_fds")
    return [_share(what, metrics[now], metrics[most]) for what, (now, most) in used.items() if metrics.get(most)]


def _share(what: str, now: float, most: float) -> Check:
    full = now > FULL * most
    fix = "raise connections_max, and the coordinator's limit of open files with it" if full else ""
    return Check(what, "warn" if full else "ok", f"{now:.0f} of {most:.0f} are open", fix)


def _installed(name: str) -> bool:
    from importlib.metadata import PackageNotFoundError

    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


CHECKS: tuple[Callable[[], list[Check]], ...] = (
    python,
    torch,
    server_parts,
    settings,
    blobs,
    port,
    open_files,
    disk,
    coordinator,
)
