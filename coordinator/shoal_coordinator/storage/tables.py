"""The database's tables. `journal` and `snapshots` are the truth; the rest is derived, or about people.

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
    # {"digest", "nbytes"} of an initial model; "version", "term", "node" of a recovered job; "base": as the first
    Column("start", JSON),
    Column("created_at", Float, nullable=False),  # seconds since 1970, UTC, here and everywhere
    Column("ended_at", Float),
    Column("summary", JSON),  # the last view of an ended job
    Column("tags", JSON, nullable=False, server_default="[]"),
    Column("labels", JSON, nullable=False, server_default="{}"),  # see jobs/model_labels.py
    Column("owner", String(63), nullable=False, server_default=""),  # name of a follower; "": the leader
)

journal = Table(
    "journal",
    metadata,
    Column("job", ForeignKey("jobs.name"), primary_key=True),
    Column("seq", Number, primary_key=True),
    Column("now", Float, nullable=False),  # the hub's clock
    Column("at", Float, nullable=False),
    Column("event", JSON, nullable=False),
    Column("skipped", Boolean, nullable=False, default=False),  # it broke the hub
)

updates = Table(
    "updates",  # the blobs of small reports, which have no files: of events that no snapshot contains yet
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
    Column("opened_s", Float, nullable=False),  # on the job's clock, as closed_s
    Column("closed_s", Float, nullable=False),
    Column("closed_at", Float, nullable=False),
    Column("weight", Float, nullable=False),
    Column("asked", Integer, nullable=False),
    Column("reports", JSON, nullable=False),  # [[node, [term, n], weight, digest], …] in the order of their folding
    Column("metrics", JSON, nullable=False),
    Column("numbers", JSON, nullable=False, server_default="{}"),  # the schedule's state from here on
    Column("score", Float),  # its accuracy, once complete: see models/version_history.py
    Column("has_metrics", Boolean, nullable=False, server_default=false()),
    Index(None, "job", "score", "number"),
    Index(None, "job", "has_metrics", "number"),
    Index(None, "job", "digest"),
)

job_events = Table(
    "job_events",
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
    Column("task", String(40), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("version", Number, nullable=False),  # the version whose model it measured and trained from
    Column("round", Number),  # the version that includes it; null: it only measured
    Column("staleness", Number, nullable=False),  # versions that were closed since it was asked
    Column("weight", Float, nullable=False),
    Column("norm", Float, nullable=False),
    Column("metrics", JSON, nullable=False),
    Column("now", Float, nullable=False),  # the hub's clock
    Column("at", Float, nullable=False),
    Column("seconds", Float),  # see telemetry/task_timing.py; null: not known, as after a crash
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
    Column("last_hello_at", Float, nullable=False),
    Column("info", JSON, nullable=False),
    Column("revoked", Boolean, nullable=False, default=False),
    Column("availability", String(16), nullable=False, server_default="active"),  # or "drained", "blocked"
    Column("peer", JSON),  # {"public_key", "urls", "is_reachable"} as a peer; null: it takes no part in gossip
)

revoked_keys = Table(
    "revoked_keys",
    metadata,
    Column("peer_id", String(20), primary_key=True),
    Column("node", String(63), nullable=False),  # owner of the key
    Column("at", Float, nullable=False),
)

failures = Table(
    "failures",
    metadata,
    Column("id", Number, primary_key=True, autoincrement=True),
    Column("job", ForeignKey("jobs.name"), nullable=False),
    Column("node", String(63), nullable=False),
    Column("task", String(40), nullable=False),  # term.n: a later failure of the same task replaces an earlier one
    Column("at", Float, nullable=False),
    Column("version", Number, nullable=False),
    Column("kind", String(16), nullable=False),  # of the task
    Column("phase", String(16), nullable=False),
    Column("error", String, nullable=False),
    Column("traceback", String, nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("outcome_why", String, nullable=False),
    UniqueConstraint("job", "node", "task"),
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
    Column("incarnation", String(16), nullable=False),  # of the process that wrote it
    Column("number", Number, nullable=False),
    UniqueConstraint("node", "incarnation", "number"),
    Index(None, "job", "id"),
    Index(None, "node", "id"),
    sqlite_autoincrement=True,
)

system_metrics = Table(
    "system_metrics",  # of nodes' machines: see telemetry/system_metrics.py
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
    Column("jobs", JSON, nullable=False, server_default="[]"),  # concerned jobs, if it is not about a single one
    Column("text", String, nullable=False),
    Column("raised_at", Float, nullable=False),
    Column("cleared_at", Float),
    Column("acknowledged_at", Float),  # by an operator
    sqlite_autoincrement=True,
)

trust_documents = Table(
    "trust_documents",
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

traffic_buckets = Table(
    "traffic_buckets",
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
    Column("process_number", Number, nullable=False),  # of the node, as all below: its part that `traffic` contains
    Column("exchanges", Number, nullable=False),
    Column("sent", Number, nullable=False),
    Column("received", Number, nullable=False),
)

leases = Table(
    "leases",  # PostgreSQL only: a file of SQLite belongs to the process that has locked it
    metadata,
    Column("name", String(63), primary_key=True),  # see storage/lease_store.py
    Column("term", Number, nullable=False),  # one more with each owner
    Column("holder", String(63), nullable=False),
    Column("until", Float, nullable=False),  # on the database's clock
    Column("commits", Number, nullable=False),  # of this term
    Column("announced_term", Number, nullable=False, server_default="0"),  # the term whose holder gave the address
    Column("address", String, nullable=False, server_default=""),
    Column("secret", String, nullable=False, server_default=""),  # signs requests that others forward to it
)

shared_secrets = Table(
    "shared_secrets",  # secrets that are the same for all coordinators of a database
    metadata,
    Column("name", String(63), primary_key=True),
    Column("text", String, nullable=False),
)
