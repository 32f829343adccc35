"""The coordinator's settings: `[coordinator]` of shoal.toml, or SHOAL_COORDINATOR__NAME in the environment."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from shoal.runtime.http.server.allowed_hosts import KnownHosts, is_loopback, names_of

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Settings(BaseModel):
    """Settings of the coordinator. The name of a limit ends with its unit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field("127.0.0.1", description="address to listen on; 0.0.0.0 for all")
    hosts: list[str] = Field(
        [],
        description="host names of the coordinator, such as shoal.example.org, beside the machine's own, localhost "
        "and, unless it listens on loopback, any address; requests for other hosts are refused",
    )
    port: int = Field(8080, ge=0, le=65535, description="port to listen on; 0: any free one")
    data: Path = Field(Path("shoal-data"), description="folder for the database, models and updates")
    split_jobs: list[Path] = Field(
        [], description="files of split jobs to serve; their learners are loaded into the coordinator"
    )
    database_url: SecretStr = Field(
        SecretStr(""),
        description="sqlite:////path or postgresql://user@host/name of the database; empty: a file in the data folder",
    )
    blobs: str = Field(
        "",
        description="store of models and updates: a folder (/path or file:///path) or s3://bucket/…, "
        "which coordinators may share; empty: the data folder",
    )
    blobs_key_id: str = Field("", description="key id for the S3 store; empty: from AWS's environment and files")
    blobs_secret: SecretStr = Field(SecretStr(""), description="secret key for the S3 store")
    presign_ttl_s: float = Field(3600.0, ge=1, le=604800, description="lifetime of a presigned URL")
    blob_cache_bytes_max: int = Field(
        16 * 2**30,
        ge=0,
        description="size of the cache of the S3 store in the data folder; least recently used blobs are evicted",
    )
    advertise: str = Field(
        "",
        description="URL under which other coordinators of the same PostgreSQL database reach this one, such as "
        "http://10.0.0.3:8080; empty: host and port, or the address by which it reaches the database",
    )
    leader_lease_s: float = Field(
        6.0, gt=0, description="lifetime of the leader's lease; then another coordinator of the database takes over"
    )
    operator_token: str = Field(
        "", description="the operators' token; empty: generated at the first start and stored in DATA/operator.token"
    )
    anonymous_read: bool | None = Field(
        None,
        description="allow reading jobs and metrics without a credential; unset: only on loopback without a proxy",
    )
    tls_cert: Path | None = Field(None, description="certificate chain (PEM) for https")
    tls_key: Path | None = Field(None, description="private key (PEM) for https")
    tls_client_ca: Path | None = Field(
        None,
        description="authorities (PEM) of the client certificates that nodes must present; empty: none",
    )

    body_bytes_max: int = Field(4 * 2**30, ge=1024, description="largest model or update")
    base_bytes_max: int = Field(64 * 2**30, ge=1024, description="largest base model of a job")
    json_bytes_max: int = Field(2**20, ge=1024, description="largest JSON request")
    pending_uploads_bytes_max: int = Field(
        16 * 2**30, ge=1024, description="uploaded updates of one node without a report, in all jobs"
    )
    buffered_bodies_bytes_max: int = Field(
        256 * 2**20, ge=2**20, description="memory for the bodies of all open requests, without models and updates"
    )
    buffered_body_timeout_s: int = Field(600, ge=1, description="time for such a body to arrive")
    disk_reserve_bytes: int = Field(256 * 2**20, ge=0, description="free disk space below which uploads are refused")
    connections_max: int = Field(
        10_000, ge=1, description="concurrent connections; more get 503. Each needs a file descriptor"
    )
    header_timeout_s: int = Field(10, ge=1, description="time for a request's header to arrive")
    body_grace_s: int = Field(20, ge=1, description="time after which a body must arrive at body_bytes_per_s_min")
    body_bytes_per_s_min: int = Field(500, ge=1, description="lowest rate of a body")

    checkins_per_s_max: float = Field(
        1000.0, gt=0, description="polls and refused requests per second above which nodes are asked to pause"
    )
    lease_s: float = Field(15.0, gt=0, description="time without a request after which a node counts as lost")
    heartbeat_s: float = Field(2.0, gt=0, description="interval at which a training node reports its progress")
    poll_s_max: float = Field(25.0, gt=0, le=300, description="longest time to hold a poll open")
    token_ttl_s: float = Field(900.0, gt=0, description="default lifetime of a token")
    session_ttl_s: float = Field(7 * 86400.0, gt=0, description="lifetime of a browser session")
    models_kept: int = Field(
        20, ge=2, description="newest models kept per job, in addition to the best, labeled ones and checkpoints"
    )
    keep_updates: bool = Field(False, description="keep updates after the fold, and late ones")
    events_kept: int = Field(100_000, ge=100, description="newest events kept per job, which browsers can replay")
    alert_stalled_s: float = Field(
        600.0,
        gt=0,
        description="time without a new version that raises an alert; ten times the usual if longer",
    )
    alert_disk_bytes: int = Field(2**30, ge=0, description="free disk space below which an alert is raised")
    alert_webhook: str = Field("", description="URL that alerts are posted to; empty: none")
    alert_webhook_secret: SecretStr = Field(SecretStr(""), description="secret that signs them")
    logs_bytes_max: int = Field(256 * 2**20, ge=2**20, description="size of all stored log lines")
    system_metrics_retention_s: float = Field(86400.0, gt=0, description="age at which system metrics are deleted")
    logs_retention_s: float = Field(7 * 86400.0, gt=0, description="age at which log lines are deleted")
    log_lines_per_s: float = Field(50.0, gt=0, description="log lines accepted per node; bursts of twenty times that")
    reports_kept: int = Field(200_000, ge=100, description="newest reports kept per job, for charts")
    rounds_kept: int = Field(
        10_000,
        ge=10,
        description="newest rounds kept per job; every 2nd, 4th, 8th … of the older ones is kept,  "
        "at most as many again, with the bytes of those between added",
    )
    traffic_flush_s: float = Field(1.0, gt=0, description="interval at which byte counts are written to the database")

    @property
    def allows_anonymous_read(self) -> bool:
        """Return True if a request without a credential may read, if no proxy has passed it on."""
        return self.host in LOOPBACK if self.anonymous_read is None else self.anonymous_read

    @cached_property
    def known_hosts(self) -> KnownHosts:
        """Return the hosts that requests may name."""
        advertised = urlsplit(self.advertise).hostname
        names = [*self.hosts, *names_of(self.host), *([advertised] if advertised else [])]
        return KnownHosts(names, addresses=not is_loopback(self.host))

    @property
    def url(self) -> str:
        """Return the SQLAlchemy URL of the database."""
        return self.database_url.get_secret_value() or f"sqlite:///{(self.data / 'shoal.db').absolute()}"
