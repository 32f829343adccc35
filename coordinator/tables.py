"""The database's tables. `events` and `snapshots` are the truth; the rest is derived, or about people.

Derived rows carry the sequence number of their event, so that writing them again after a crash changes nothing.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    UniqueConstraint,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)
Number = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows by itself only in an INTEGER column

jobs = Table(
    "jobs",
    metadata,
    Column("name", String(63), primary_key=True),
    Column("spec", JSON, nullable=False),
    Column("start", JSON),  # {"digest", "nbytes"} of a model given with the job; "version", "term" of one restored
    Column("created_at", Float, nullable=False),  # seconds since 1970, UTC, here and everywhere
    Column("ended_at", Float),
    Column("summary", JSON),  # the last view of an ended job
)

events = Table(
    "events",
    metadata,
    Column("job", ForeignKey("jobs.name"), primary_key=True),
    Column("seq", Number, primary_key=True),
    Column("now", Float, nullable=False),  # the hub's clock
    Column("at", Float, nullable=False),
    Column("event", JSON, nullable=False),
    Column("aside", Boolean, nullable=False, default=False),  # fed no more: it broke the hub
)

snapshots = Table(
    "snapshots",
    metadata,
    Column("job", ForeignKey("jobs.name"), primary_key=True),
    Column("seq", Number, primary_key=True),
    Column("now", Float, nullable=False),
    Column("state", JSON, nullable=False),
)

versions = Table(
    "versions",
    metadata,
    Column("job", ForeignKey("jobs.name"), primary_key=True),
    Column("number", Number, primary_key=True),
    Column("seq", Number, nullable=False),
    Column("digest", String(64), nullable=False),
    Column("nbytes", Number, nullable=False),
    Column("why", String, nullable=False),
    Column("opened", Float, nullable=False),
    Column("closed", Float, nullable=False),
    Column("closed_at", Float, nullable=False),
    Column("weight", Float, nullable=False),
    Column("asked", Integer, nullable=False),
    Column("reports", JSON, nullable=False),  # [[node, [boot, n], weight, digest], …] in the order of their folding
    Column("metrics", JSON, nullable=False),
    Column("numbers", JSON, nullable=False, server_default="{}"),  # what the schedule keeps from here on
)

feed = Table(
    "feed",
    metadata,
    Column("id", Number, primary_key=True, autoincrement=True),
    Column("job", ForeignKey("jobs.name"), nullable=False),
    Column("seq", Number, nullable=False),
    Column("part", Integer, nullable=False),
    Column("at", Float, nullable=False),
    Column("topic", String(16), nullable=False),
    Column("data", JSON, nullable=False),
    UniqueConstraint("job", "seq", "part"),
    Index(None, "job", "topic", "id"),
    sqlite_autoincrement=True,
)

nodes = Table(
    "nodes",
    metadata,
    Column("name", String(63), primary_key=True),
    Column("secret", String(64), nullable=False, unique=True),  # SHA-256 of the credential
    Column("joined_at", Float, nullable=False),
    Column("seen_at", Float, nullable=False),
    Column("info", JSON, nullable=False),
    Column("revoked", Boolean, nullable=False, default=False),
    Column("peer", JSON),  # {"pub", "urls", "inbound"}: how others know and reach it; null: it takes no part in gossip
)

revoked_keys = Table(
    "revoked_keys",
    metadata,
    Column("peer_id", String(20), primary_key=True),
    Column("node", String(63), nullable=False),  # whose key it was
    Column("at", Float, nullable=False),
)

papers = Table(
    "papers",
    metadata,
    Column("job", ForeignKey("jobs.name"), primary_key=True),
    Column("version", Number, nullable=False),  # of the roster
    Column("charter", String, nullable=False),  # as they were signed and handed out
    Column("roster", String, nullable=False),
)

tokens = Table(
    "tokens",
    metadata,
    Column("secret", String(64), primary_key=True),
    Column(
        "role", String(16), nullable=False
    ),  # node: an enrolment token; operator, viewer: a bearer; session: a cookie
    Column("name", String(63)),  # the only node that it may enrol
    Column("uses", Integer, nullable=False),  # enrolments left
    Column("grants", String(16)),  # of a session: operator or viewer
    Column("expires_at", Float),
)

traffic = Table(
    "traffic",
    metadata,
    Column("job", String(63), primary_key=True),  # "" outside any job
    Column("version", Number, primary_key=True),  # -1 outside any round
    Column("node", String(63), primary_key=True),  # "" for browsers and operators
    Column("kind", String(16), primary_key=True),
    Column("direction", String(4), primary_key=True),  # up: to the coordinator
    Column("requests", Number, nullable=False),
    Column("head_bytes", Number, nullable=False),
    Column("body_bytes", Number, nullable=False),
)

gossip_bytes = Table(
    "gossip_bytes",
    metadata,
    Column("job", String(63), primary_key=True),
    Column("node", String(63), primary_key=True),
    Column("boot", Number, nullable=False),  # of the node, as all that follows: what of it is in `traffic` already
    Column("exchanges", Number, nullable=False),
    Column("sent", Number, nullable=False),
    Column("received", Number, nullable=False),
)
