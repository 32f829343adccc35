"""The leases of a PostgreSQL database that several coordinators may share, as one coordinator reads and holds them.

A coordinator holds one of two leases at a time: the leader's, or its own as a follower. The lock of its folder is held
as long as the store is open: two coordinators never share a folder, and so never a name.
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

from shoal.core.cluster.job_assignment import LEADER, JobOwners
from shoal.core.cluster.leader_lease import HeldLease, LeaderLease, LeaseRow
from shoal.core.errors import StorageFailed
from shoal.extras import install_hint
from shoal.runtime.durable_files import write_file

LEASE_S = 6.0
"""Default lifetime of a lease in seconds."""

READ_S_MAX = 0.5
"""Greatest seconds between two reads of the lease by a standby."""

OWNER = "coordinator"

_CLOCK_ID = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

_READ_LEASE = text(
    "SELECT *, until - extract(epoch FROM clock_timestamp()) AS time_left FROM leases WHERE name = :name"
).bindparams(name=OWNER)

FOLLOWER = "follower:"
"""Prefix of the followers' rows."""

_FOLLOWERS = text(
    "SELECT *, until - extract(epoch FROM clock_timestamp()) AS time_left FROM leases WHERE name LIKE :names"
).bindparams(names=f"{FOLLOWER}%")
_READ_OWNERS = text("SELECT name, owner FROM jobs WHERE owner <> ''")

_SHARED_SECRET = text("SELECT text FROM shared_secrets WHERE name = :name")


def clock() -> float:
    """Return seconds of a clock that also runs while the process is stopped or the machine sleeps."""
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


def connect_args(lease_s: float) -> dict[str, Any]:
    """Return connection settings with timeouts no longer than a lease."""
    return {
        "client_encoding": "utf-8",  # a database that was made in the locale C gives bytes for texts otherwise
        "connect_timeout": max(2, min(10, math.ceil(lease_s))),
        "prepare_threshold": None,
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "tcp_user_timeout": int(lease_s * 1000),
    }


@dataclass(frozen=True)
class LeaseHolder:
    """Holder of a lease: a row of the table of leases."""

    store: LeaseStore
    row: str
    owner: str
    """As jobs name it (`shoal.core.cluster.job_assignment`)."""
    lease: LeaderLease | HeldLease

    @property
    def is_leader(self) -> bool:
        """True if it is the leader's."""
        return self.owner == LEADER


class LeaseStore:
    """Reader of the leases. Locks the folder; raises `StorageFailed` when another coordinator uses it."""

    def __init__(self, url: URL, folder: Path | None, lease_s: float = LEASE_S) -> None:
        self.url, self.lease_s = url, lease_s
        self._lock = lock(folder / "shoal.lock", str(folder)) if folder is not None else None
        try:
            name = _name_of(folder) if folder is not None else secrets.token_hex(8)
            self._engine = create_engine(url, pool_size=1, max_overflow=0, connect_args=connect_args(lease_s))
        except ModuleNotFoundError as error:
            self.close()
            raise StorageFailed(
                f"PostgreSQL needs the package {error.name}",
                code="storage.driver",
                hint=install_hint("postgres"),
            ) from None
        except StorageFailed:
            self.close()
            raise
        self.lease = LeaderLease(name, lease_s, min(READ_S_MAX, lease_s / 6))
        self.leader = LeaseHolder(self, OWNER, LEADER, self.lease)
        self.follower = LeaseHolder(self, FOLLOWER + name, name, HeldLease(lease_s))

    @property
    def name(self) -> str:
        """Return the coordinator's name, which its folder keeps."""
        return self.lease.me

    def shared_secret(self, name: str) -> str | None:
        """Return the owner's secret for all; None if there is none, or the database does not answer."""
        try:
            with self._engine.connect() as connection:
                found: str | None = connection.execute(_SHARED_SECRET, {"name": name}).scalar()
                return found
        except DBAPIError:
            return None

    def read_lease(self) -> LeaseRow | None:
        """Read the lease; None while the database does not answer. Blocks."""
        try:
            with self._engine.connect() as connection:
                row = connection.execute(_READ_LEASE).mappings().first()
        except ProgrammingError:  # a new database, without tables
            row = None
        except DBAPIError:
            return None
        return _lease(row) if row is not None else LeaseRow(0, "", 0.0)

    def read_owners(self) -> JobOwners | None:
        """Read who owns which job; None while the database does not answer. Blocks."""
        asked = clock()
        try:
            with self._engine.connect() as connection:
                rows = connection.execute(_FOLLOWERS).mappings().all()
                jobs = {row.name: row.owner for row in connection.execute(_READ_OWNERS)}
        except ProgrammingError:  # a new database, without tables
            return JobOwners(asked=asked)
        except DBAPIError:
            return None
        return JobOwners({row["name"].removeprefix(FOLLOWER): _lease(row) for row in rows}, jobs, asked)

    def own_host(self) -> str:
        """Return the address by which this machine reaches the database: other coordinators usually reach it there."""
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
        """Release the folder."""
        if hasattr(self, "_engine"):
            self._engine.dispose()
        if self._lock is not None:
            self._lock.close()


def _lease(row: Mapping[Any, Any]) -> LeaseRow:
    is_announced = row.get("announced_term") == row["term"]  # else what is there is an earlier owner's
    announced = (row["address"], row["secret"]) if is_announced else ("", "")
    return LeaseRow(row["term"], row["holder"], float(row["time_left"]), *announced)


def _name_of(folder: Path) -> str:
    """Return the name of this folder's coordinators in the table of leases, made at the first start."""
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
