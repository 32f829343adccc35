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
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    false,
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
    Column(
        "start", JSON
    ),  # {"digest", "nbytes"} of a model given with the job; "version", "term", "node" of one that goes on
    Column("created_at", Float, nullable=False),  # seconds since 1970, UTC, here and everywhere
    Column("ended_at", Float),
    Column("summary", JSON),  # the last view of an ended job
    Column("tags", JSON, nullable=False, server_default="[]"),
    Column("labels", JSON, nullable=False, server_default="{}"),  # see coordinator/shoal_coordinator/labels.py
    Column("owner", String(63), nullable=False, server_default=""),  # a deputy (owners.py); "": the lead
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

updates = Table(
    "updates",  # the bodies of small reports, which have no files: of events that no snapshot contains yet
    metadata,
    Column("job", ForeignKey("jobs.name"), primary_key=True),
    Column("seq", Number, primary_key=True),
    Column("body", LargeBinary, nullable=False),
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
    Column("score", Float),  # the accuracy that its metrics tell, once it is complete (history.py)
    Column("measured", Boolean, nullable=False, server_default=false()),  # whether it has metrics
    Index(None, "job", "score", "number"),
    Index(None, "job", "measured", "number"),
    Index(None, "job", "digest"),
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

reports = Table(
    "reports",
    metadata,
    Column("id", Number, primary_key=True, autoincrement=True),
    Column("job", ForeignKey("jobs.name"), nullable=False),
    Column("seq", Number, nullable=False),
    Column("node", String(63), nullable=False),
    Column("order", String(40), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("version", Number, nullable=False),  # whose model it has measured, and started from
    Column("round", Number),  # the version that it became a part of; null: it only measured
    Column("staleness", Number, nullable=False),  # versions that were closed since it was asked
    Column("weight", Float, nullable=False),
    Column("norm", Float, nullable=False),
    Column("metrics", JSON, nullable=False),
    Column("now", Float, nullable=False),  # the hub's clock
    Column("at", Float, nullable=False),
    Column("seconds", Float),  # see coordinator/shoal_coordinator/stopwatch.py; null: not known, as after a crash
    Column("wait_s", Float),
    Column("download_s", Float),
    Column("train_s", Float),
    Column("upload_s", Float),
    Column("fold_s", Float),
    UniqueConstraint("job", "seq"),
    Index(None, "job", "node", "id"),
    Index(None, "job", "round"),
    Index(None, "node", "id"),
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
    Column("availability", String(16), nullable=False, server_default="active"),  # or "drained", "blocked"
    Column("peer", JSON),  # {"pub", "urls", "inbound"}: how others know and reach it; null: it takes no part in gossip
)

revoked_keys = Table(
    "revoked_keys",
    metadata,
    Column("peer_id", String(20), primary_key=True),
    Column("node", String(63), nullable=False),  # whose key it was
    Column("at", Float, nullable=False),
)

failures = Table(
    "failures",
    metadata,
    Column("id", Number, primary_key=True, autoincrement=True),
    Column("job", ForeignKey("jobs.name"), nullable=False),
    Column("node", String(63), nullable=False),
    Column("order", String(40), nullable=False),  # boot.n: a later word on the same order replaces an earlier one
    Column("at", Float, nullable=False),
    Column("version", Number, nullable=False),
    Column("kind", String(16), nullable=False),  # of the order
    Column("phase", String(16), nullable=False),
    Column("error", String, nullable=False),
    Column("traceback", String, nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("outcome_why", String, nullable=False),
    UniqueConstraint("job", "node", "order"),
    Index(None, "node", "id"),
    sqlite_autoincrement=True,
)

logs = Table(
    "logs",
    metadata,
    Column("id", Number, primary_key=True, autoincrement=True),
    Column("at", Float, nullable=False),
    Column("node", String(63), nullable=False),  # "": the coordinator's own
    Column("job", String(63), nullable=False),  # "": of no job
    Column("round", Number),
    Column("level", Integer, nullable=False),  # as in Python's logging
    Column("text", String, nullable=False),
    Column("fields", JSON, nullable=False),
    Column("boot", String(16), nullable=False),  # of the process that has said it
    Column("number", Number, nullable=False),
    UniqueConstraint("node", "boot", "number"),
    Index(None, "job", "id"),
    Index(None, "node", "id"),
    sqlite_autoincrement=True,
)

system_metrics = Table(
    "system_metrics",  # of nodes' machines: see system_metrics.py
    metadata,
    Column("node", String(63), primary_key=True),
    Column("at", Float, primary_key=True),
    *(Column(name, Float) for name in ("cpu", "memory_bytes", "memory_total_bytes", "process_bytes")),
    *(Column(name, Float) for name in ("gpu", "gpu_memory_bytes", "gpu_memory_total_bytes")),
    *(Column(name, Float) for name in ("sent_bytes_per_s", "received_bytes_per_s", "disk_free_bytes", "battery")),
    Column("charging", Boolean),
    Index(None, "at"),
)

alerts = Table(
    "alerts",
    metadata,
    Column("id", Number, primary_key=True, autoincrement=True),
    Column("kind", String(16), nullable=False),
    Column("job", String(63), nullable=False),  # "": of none, as below
    Column("node", String(63), nullable=False),
    Column("jobs", JSON, nullable=False, server_default="[]"),  # that it bears on, where it is about none alone
    Column("text", String, nullable=False),
    Column("raised_at", Float, nullable=False),
    Column("cleared_at", Float),
    Column("seen_at", Float),  # when an operator has said that he knows
    sqlite_autoincrement=True,
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
    Column("id", String(12), nullable=False, server_default=""),  # its first letters, for lists; "": a session
    Column("created_at", Float, nullable=False, server_default="0"),
    Column("uses", Integer, nullable=False),  # enrolments left
    Column("uses_max", Integer, nullable=False, server_default="0"),  # enrolments that it was made for
    Column("grants", String(16)),  # of a session: operator or viewer
    Column("parent", String(64)),  # of a session: SHA-256 of the token with which it was opened
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

traffic_quarters = Table(
    "traffic_quarters",
    metadata,
    Column("at", Number, primary_key=True),  # seconds since 1970: where the quarter of an hour begins
    Column("direction", String(4), primary_key=True),
    Column("bytes", Number, nullable=False),
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

leases = Table(
    "leases",  # of a database of PostgreSQL: SQLite's belongs to whoever has locked the file
    metadata,
    Column("name", String(63), primary_key=True),  # what is owned
    Column("epoch", Number, nullable=False),  # one more with each owner
    Column("holder", String(63), nullable=False),
    Column("until", Float, nullable=False),  # on the database's clock
    Column("commits", Number, nullable=False),  # of this epoch
    Column("speaks", Number, nullable=False, server_default="0"),  # the epoch whose owner answers at that address
    Column("address", String, nullable=False, server_default=""),
    Column("secret", String, nullable=False, server_default=""),  # with which others sign what they pass on to it
)

keepsakes = Table(
    "keepsakes",  # files of the data folder that all coordinators of one database must have alike
    metadata,
    Column("name", String(63), primary_key=True),
    Column("text", String, nullable=False),
)
