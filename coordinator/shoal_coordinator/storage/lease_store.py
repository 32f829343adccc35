"""One coordinator's seat at a PostgreSQL database that others may share: its name, its folder, and what it knows of the
leases. From it, it may hold two posts, one at a time: that of the lead, and one of its own, as a deputy.

The folder's lock is held for as long as the seat: two coordinators never share one folder, and so never one name.
"""

from __future__ import annotations

import fcntl
import math
import secrets
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import URL, create_engine, text
from sqlalchemy.exc import DBAPIError, ProgrammingError

from shoal.core.errors import StorageFailed
from shoal.core.owners import LEAD, Owners
from shoal.core.tenure import Hold, Lease, Tenure
from shoal.runtime.store import write_file

LEASE_S = 6.0
"""So long after its last sign of life an owner may still be there, unless a setting says otherwise."""

LOOK_S_MAX = 0.5
"""How often a standby looks at the lease, at least."""

OWNER = "coordinator"

_CLOCK_ID = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

# All columns that there are: the table may be of an earlier release, whose owner does not say where it is.
_LOOK = text(
    "SELECT *, until - extract(epoch FROM clock_timestamp()) AS time_left FROM leases WHERE name = :name"
).bindparams(name=OWNER)

DEPUTY = "deputy:"
"""How the names of deputies' rows begin."""

_DEPUTIES = text(
    "SELECT *, until - extract(epoch FROM clock_timestamp()) AS time_left FROM leases WHERE name LIKE :names"
).bindparams(names=f"{DEPUTY}%")
_OWNED = text("SELECT name, owner FROM jobs WHERE owner <> ''")

_KEEPSAKE = text("SELECT text FROM keepsakes WHERE name = :name")


def clock() -> float:
    """Seconds that pass for a process that is stopped, and on a machine that sleeps."""
    return time.clock_gettime(_CLOCK_ID)


def lock(path: Path, what: str) -> Any:
    """Hold a file for as long as this process lives. Raises `StorageFailed` when another holds it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = path.open("w")
    except OSError as error:
        raise StorageFailed(f"{path.parent}: {error.strerror}", hint="choose another folder with --data") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        handle.close()
        raise StorageFailed(
            f"another coordinator uses {what}",
            code="storage.locked",
            hint="stop it, or choose another folder with --data",
        ) from None
    return handle


def reached(lease_s: float) -> dict[str, Any]:
    """How a server is reached: one that is silent for as long as a lease lasts is not waited for."""
    return {
        "client_encoding": "utf-8",  # a database that was made in the locale C gives bytes for texts otherwise
        "connect_timeout": max(2, min(10, math.ceil(lease_s))),
        "prepare_threshold": None,
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "tcp_user_timeout": int(lease_s * 1000),
    }


@dataclass(frozen=True)
class Post:
    """What may be owned from a seat: a row of the table of leases, and how it is held."""

    seat: Seat
    row: str
    owner: str
    """As jobs name it (`shoal.core.owners`)."""
    hold: Tenure | Hold

    @property
    def is_lead(self) -> bool:
        """Whether it is the lead's."""
        return self.owner == LEAD


class Seat:
    """Opened with `Seat(url, folder)`, which locks the folder. Raises `StorageFailed` when another holds it."""

    def __init__(self, url: URL, folder: Path | None, lease_s: float = LEASE_S) -> None:
        self.url, self.lease_s = url, lease_s
        self._lock = lock(folder / "shoal.lock", str(folder)) if folder is not None else None
        try:
            name = _name_of(folder) if folder is not None else secrets.token_hex(8)
            self._engine = create_engine(url, pool_size=1, max_overflow=0, connect_args=reached(lease_s))
        except ModuleNotFoundError as error:
            self.close()
            raise StorageFailed(
                f"PostgreSQL needs the package {error.name}",
                code="storage.driver",
                hint="pip install 'shoal[postgres]'",
            ) from None
        except StorageFailed:
            self.close()
            raise
        self.tenure = Tenure(name, lease_s, min(LOOK_S_MAX, lease_s / 6))
        self.lead = Post(self, OWNER, LEAD, self.tenure)
        self.deputy = Post(self, DEPUTY + name, name, Hold(lease_s))

    @property
    def name(self) -> str:
        """The same in all lives over one folder."""
        return self.tenure.me

    def keepsake(self, name: str) -> str | None:
        """What the owner has left there for all; None: nothing, or the database does not answer."""
        try:
            with self._engine.connect() as connection:
                found: str | None = connection.execute(_KEEPSAKE, {"name": name}).scalar()
                return found
        except DBAPIError:  # among them an owner of an earlier release, without that table
            return None

    def look(self) -> Lease | None:
        """The lease as it is; None while the database does not answer. Waits for it."""
        try:
            with self._engine.connect() as connection:
                row = connection.execute(_LOOK).mappings().first()
        except ProgrammingError:  # a new database, without tables
            row = None
        except DBAPIError:
            return None
        return _lease(row) if row is not None else Lease(0, "", 0.0)

    def owners(self) -> Owners | None:
        """Who owns which job; None while the database does not answer. Waits for it."""
        asked = clock()
        try:
            with self._engine.connect() as connection:
                rows = connection.execute(_DEPUTIES).mappings().all()
                jobs = {row.name: row.owner for row in connection.execute(_OWNED)}
        except ProgrammingError:  # of a release that had no deputies, or without tables
            return Owners(asked=asked)
        except DBAPIError:
            return None
        return Owners({row["name"].removeprefix(DEPUTY): _lease(row) for row in rows}, jobs, asked)

    def own_host(self) -> str:
        """The address by which this machine reaches the database: others of its kind reach it there, as a rule."""
        host = self.url.host or ""
        if not host or host.startswith("/"):
            return "127.0.0.1"
        try:
            place = socket.getaddrinfo(host, self.url.port or 5432, type=socket.SOCK_DGRAM)[0]
            with socket.socket(place[0], socket.SOCK_DGRAM) as probe:  # sends nothing: it only chooses the way
                probe.connect(place[4])
                return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()

    def close(self) -> None:
        """Let the folder go."""
        if hasattr(self, "_engine"):
            self._engine.dispose()
        if self._lock is not None:
            self._lock.close()


def _lease(row: Mapping[Any, Any]) -> Lease:
    speaks = row.get("speaks") == row["epoch"]  # else what is there is an earlier owner's
    told = (row["address"], row["secret"]) if speaks else ("", "")
    return Lease(row["epoch"], row["holder"], float(row["time_left"]), *told)


def _name_of(folder: Path) -> str:
    """Who this folder's coordinators are, as the table of leases has it: made at the first start."""
    path = folder / "coordinator.name"
    try:
        known = path.read_text(encoding="ascii").strip() if path.exists() else ""
        if known:
            return known
        made = secrets.token_hex(8)
        write_file(path, f"{made}\n".encode(), "name")
    except (OSError, UnicodeDecodeError) as error:
        raise StorageFailed(f"{path}: {error}", hint="choose another folder with --data") from None
    return made
