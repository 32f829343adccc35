"""`shoal doctor`: checks of this machine and the coordinator, with fixes."""

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
from shoal.cli.process.program import FAILED, OK
from shoal.cli.terminal.output import out
from shoal.cli.terminal.text import safe, seconds, size, state, table
from shoal.core.errors import NotAllowed, ShoalError
from shoal.extras import install_hint

if TYPE_CHECKING:
    from shoal.client.api import CoordinatorApi
    from shoal_coordinator.settings import Settings

PYTHON_OLDEST = (3, 11)
SQLITE_SOUND = (3, 51, 3)
"""Before this, two connections that checkpoint at the same time can corrupt a WAL database (the WAL-reset bug)."""
FREE_BYTES_MIN = 2 * 10**9
FSYNC_S_MAX = 0.1
SKEW_S_MAX = 5.0
FULL = 0.8
"""The share of connections or files that is nearly all."""


@dataclass(frozen=True)
class DoctorCheck:
    """The result of one check. `fix` is set unless the result is ok."""

    name: str
    state: Literal["ok", "warn", "fail"]
    found: str
    fix: str = ""


def doctor() -> int:
    """Check this machine and the coordinator, and suggest fixes.

    Exit code 1 if a check failed, not for warnings.
    """
    checks: list[DoctorCheck] = []
    with out.progress("looking", len(CHECKS)) as advance:
        for done, check in enumerate(CHECKS):
            advance(done, check.__name__.replace("_", " "))
            try:
                checks += check()
            except ShoalError as error:
                checks.append(DoctorCheck(check.__name__.replace("_", " "), "fail", error.message, error.hint))
    rows = table("", "check", "found", "what to do", prose=("found", "what to do"))
    for one in checks:
        rows.add_row(state(one.state), one.name, safe(one.found), safe(one.fix))
    bad = sum(one.state == "fail" for one in checks)
    summary = f"[bold red]{bad} of {len(checks)} checks failed[/]" if bad else "[bold green]shoal can run here[/]"
    out.answer({"healthy": not bad, "checks": checks}, rows, summary)
    return FAILED if bad else OK


def python() -> list[DoctorCheck]:
    """Check the interpreter and shoal itself."""
    found = f"{'.'.join(map(str, sys.version_info[:3]))} at {sys.executable}"
    fine = sys.version_info[:2] >= PYTHON_OLDEST
    return [
        DoctorCheck(
            "shoal", "ok", __version__ + ("" if _installed("shoal") else ", run from its folder, not installed")
        ),
        DoctorCheck("python", "ok" if fine else "fail", found, "" if fine else "install Python 3.11 or newer"),
    ]


def torch() -> list[DoctorCheck]:
    """Check PyTorch, and name the device that `--device auto` selects."""
    try:
        import torch as found
    except ModuleNotFoundError:
        fix = f"to use TorchLearner or held-out data here: {install_hint('torch')}"
        return [DoctorCheck("torch", "warn", "torch not installed", fix)]
    except ImportError as error:  # it is there and damaged
        return [DoctorCheck("torch", "fail", str(error), install_hint("torch", "--force-reinstall"))]
    names = ["cpu"]
    if found.backends.mps.is_available():
        names.insert(0, "mps")
    if found.cuda.is_available():
        names = [f"cuda:{i} ({found.cuda.get_device_name(i)})" for i in range(found.cuda.device_count())] + names
    return [
        DoctorCheck("torch", "ok", f"{found.__version__}, {found.get_num_threads()} threads"),
        DoctorCheck("device", "ok", f"{names[0]}" + (f"; also {', '.join(names[1:])}" if names[1:] else "")),
    ]


def server_parts() -> list[DoctorCheck]:
    """Check the packages that a coordinator needs."""
    missing = [name for name in ("fastapi", "uvicorn", "sqlalchemy", "alembic") if not importlib.util.find_spec(name)]
    if missing:
        fix = f"to run a coordinator here: {install_hint('coordinator')}"
        return [DoctorCheck("coordinator", "warn", f"{', '.join(missing)} not installed", fix)]
    return [DoctorCheck("coordinator", "ok", "can be started here"), _sqlite(), _dashboard()]


def _sqlite() -> DoctorCheck:
    found = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info >= SQLITE_SOUND:
        return DoctorCheck("sqlite", "ok", found)
    fix = "let no other program write to the database while a coordinator runs (WAL-reset bug before 3.51.3)"
    return DoctorCheck("sqlite", "warn", found, fix)


def _dashboard() -> DoctorCheck:
    from shoal_dashboard import TO_BUILD, assets

    if assets() is not None:
        return DoctorCheck("dashboard", "ok", "built")
    return DoctorCheck("dashboard", "warn", "not built: the coordinator has no pages", TO_BUILD)


def blobs() -> list[DoctorCheck]:
    """Check that the blob store is readable and writable, if there is one outside the data folder."""
    if not importlib.util.find_spec("sqlalchemy"):
        return []
    from shoal_coordinator.storage.blobs.places import reach

    settings = _coordinator_settings()
    return [DoctorCheck("blobs", "ok", f"{reach(settings).name} takes and gives")] if settings.blobs else []


def _coordinator_settings() -> Settings:
    from shoal.configuration import load
    from shoal_coordinator.settings import Settings

    return load(Settings, "coordinator", config=out.flags.config)


def port() -> list[DoctorCheck]:
    """Check that a coordinator can listen on its configured port."""

    settings = _coordinator_settings()
    where = f"{settings.host}:{settings.port}"
    if is_free(settings.host, settings.port):
        return [DoctorCheck("port", "ok", f"{where} is free")]
    return [
        DoctorCheck(
            "port", "warn", f"{where} is taken", "start another coordinator with --port, or stop what listens there"
        )
    ]


def is_free(host: str, number: int) -> bool:
    """Return whether a process can listen on a port; port 0 is always free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        if os.name == "posix":  # as servers do; elsewhere the option means something else
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, number))
        except OSError:
            return False
    return True


def open_files() -> list[DoctorCheck]:
    """Check that the limit of open files permits the configured number of connections."""
    from shoal.runtime.open_files import connections_within, raise_limit

    limit, wanted = raise_limit(), _coordinator_settings().connections_max
    found = f"{limit} may be open, which leaves {connections_within(limit)} connections"
    if connections_within(limit) >= wanted:
        return [DoctorCheck("open files", "ok", found)]
    fix = f"raise the hard limit of open files, or lower connections_max ({wanted}): more connections are refused"
    return [DoctorCheck("open files", "warn", found, fix)]


def disk() -> list[DoctorCheck]:
    """Check free space and the duration of a durable write."""

    folder = _coordinator_settings().data.absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    found = f"{size(free)} free in {folder}"
    space = DoctorCheck("disk", "ok", found)
    if free < FREE_BYTES_MIN:
        space = DoctorCheck("disk", "warn", found, "free some, or choose another folder with --data")
    try:
        took = fsync_seconds(folder)
    except OSError as error:
        return [
            space,
            DoctorCheck("writing", "fail", str(error), f"make {folder} writable, or choose another with --data"),
        ]
    slow = took > FSYNC_S_MAX
    fix = "each acknowledged report waits for this: choose a faster disk with --data" if slow else ""
    return [space, DoctorCheck("fsync", "warn" if slow else "ok", f"{took * 1000:.1f} ms", fix)]


def fsync_seconds(folder: Path) -> float:
    """Return the median seconds of a small durable write in a folder."""
    took = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(5):
            started = time.perf_counter()
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
            took.append(time.perf_counter() - started)
    return sorted(took)[2]


def settings() -> list[DoctorCheck]:
    """Check that all sections of the settings are valid."""
    from shoal.cli.commands.config import every_setting
    from shoal.configuration import config_file

    every_setting()
    return [DoctorCheck("settings", "ok", str(config_file(out.flags.config) or "no file; defaults and environment"))]


def coordinator() -> list[DoctorCheck]:
    """Check that the coordinator answers, accepts the token, and has the same time."""
    from shoal.cli.connection import connect
    from shoal.configuration import DEFAULT_URL

    with connect() as api:
        try:
            skew, release = api.clock_skew_s(), api.get("/version")["version"]
        except ShoalError as error:
            meant = api.url != DEFAULT_URL
            fix = error.hint if meant else "shoal coordinator starts one; to use another: --url, SHOAL_CLIENT__URL"
            return [DoctorCheck("reachable", "fail" if meant else "warn", error.message, fix)]
        checks = [DoctorCheck("reachable", "ok", f"{api.url}, release {release}")]
        try:
            api.get("/jobs")
            checks.append(DoctorCheck("credential", "ok", "accepted" if api.has_token else "none needed to look"))
            checks += _load(api)
        except NotAllowed as error:
            checks.append(DoctorCheck("credential", "fail", error.message, error.hint))
    late = abs(skew) > SKEW_S_MAX
    fix = "set the clock of one of the two (NTP): times in logs and tokens' lives are off by that" if late else ""
    return [*checks, DoctorCheck("clock", "warn" if late else "ok", f"{seconds(abs(skew))} apart", fix)]


def _load(api: CoordinatorApi) -> list[DoctorCheck]:
    """Check how many of its connections and open files the coordinator uses."""
    try:
        metrics = api.metrics()
    except ShoalError as error:
        return [DoctorCheck("metrics", "warn", error.message, error.hint or "see the coordinator's log")]
    used = {"connections": ("shoal_connections", "shoal_connections_max")}
    used["coordinator's files"] = ("process_open_fds", "process_max_fds")
    return [_share(what, metrics[now], metrics[most]) for what, (now, most) in used.items() if metrics.get(most)]


def _share(what: str, now: float, most: float) -> DoctorCheck:
    full = now > FULL * most
    fix = "raise connections_max, and the coordinator's limit of open files with it" if full else ""
    return DoctorCheck(what, "warn" if full else "ok", f"{now:.0f} of {most:.0f} are open", fix)


def _installed(name: str) -> bool:
    from importlib.metadata import PackageNotFoundError

    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


CHECKS: tuple[Callable[[], list[DoctorCheck]], ...] = (
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
