"""The coordinator's settings: `[coordinator]` of shoal.toml, or SHOAL_COORDINATOR__NAME in the environment."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from shoal.runtime.known_hosts import KnownHosts, is_loopback, names_of

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Settings(BaseModel):
    """Every limit has a name with a unit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field("127.0.0.1", description="address to listen on; 0.0.0.0 for all")
    hosts: list[str] = Field(
        [],
        description="names under which it is reached, such as shoal.example.org, beside the machine's own, localhost "
        "and, unless it listens on loopback, any address; requests for another host are refused",
    )
    port: int = Field(8080, ge=0, le=65535, description="port to listen on; 0: any free one")
    data: Path = Field(Path("shoal-data"), description="folder for the database, models and updates")
    database_url: SecretStr = Field(
        SecretStr(""),
        description="sqlite:////path or postgresql://user@host/name of the database; empty: a file in the data folder",
    )
    blobs: str = Field(
        "",
        description="where models and updates lie: a folder (/path or file:///path) or s3://bucket/…, "
        "which coordinators may share; empty: in the data folder",
    )
    blobs_key_id: str = Field("", description="key id for the S3 store; empty: as AWS's own tools find it")
    blobs_secret: SecretStr = Field(SecretStr(""), description="its secret")
    blobs_ttl_s: float = Field(3600.0, ge=1, le=604800, description="life of an address by which a node is sent there")
    near_bytes_max: int = Field(
        16 * 2**30,
        ge=0,
        description="copies of what lies in the S3 store that are kept in the data folder; "
        "those not used for longest go first, and are read again when they are needed",
    )
    advertise: str = Field(
        "",
        description="where other coordinators of the same PostgreSQL database reach this one, such as http://10.0.0.3:8080;"
        " empty: host and port, or for all addresses the one by which it reaches the database",
    )
    owner_lease_s: float = Field(
        6.0, gt=0, description="silence after which another coordinator of the same PostgreSQL database takes over"
    )
    operator_token: str = Field(
        "", description="the operators' token; empty: made at the first start, kept in DATA/operator.token"
    )
    open_reading: bool | None = Field(
        None,
        description="whether anybody may read jobs and metrics; unset: only when listening on loopback, "
        "and no proxy is in between",
    )
    tls_cert: Path | None = Field(None, description="certificate chain (PEM) for https")
    tls_key: Path | None = Field(None, description="private key (PEM) for https")
    tls_client_ca: Path | None = Field(
        None,
        description="authorities (PEM) whose certificates nodes must show, each in its own name, beside their "
        "credentials; empty: nodes need none",
    )

    body_bytes_max: int = Field(4 * 2**30, ge=1024, description="greatest model or update")
    json_bytes_max: int = Field(2**20, ge=1024, description="greatest JSON request")
    node_bytes_max: int = Field(
        16 * 2**30, ge=1024, description="updates of one node that no report has named yet, in all jobs together"
    )
    held_bodies_bytes_max: int = Field(
        256 * 2**20, ge=2**20, description="memory for the bodies of all open requests together, but for models"
    )
    held_body_s: int = Field(600, ge=1, description="seconds for such a body to arrive as a whole")
    disk_reserve_bytes: int = Field(256 * 2**20, ge=0, description="free space below which nothing more is accepted")
    connections_max: int = Field(
        10_000, ge=1, description="connections at once; more are answered with 503. Each needs an open file"
    )
    head_receipt_s: int = Field(10, ge=1, description="seconds for a request's head to arrive")
    body_grace_s: int = Field(20, ge=1, description="seconds after which a body must have come at body_bytes_per_s_min")
    body_bytes_per_s_min: int = Field(500, ge=1, description="slowest body that is waited for")

    arrivals_per_s: float = Field(
        1000.0, gt=0, description="polls and refused requests a second beyond which nodes are asked to pause"
    )
    lease_s: float = Field(15.0, gt=0, description="silence after which a node is taken for lost")
    beat_s: float = Field(2.0, gt=0, description="how often a training node says how far it is")
    poll_s_max: float = Field(25.0, gt=0, le=300, description="longest time that a poll is held open")
    token_ttl_s: float = Field(900.0, gt=0, description="life of an enrolment token, unless it says otherwise")
    session_ttl_s: float = Field(7 * 86400.0, gt=0, description="life of a browser session")
    models_kept: int = Field(
        20, ge=2, description="newest versions of a job whose models are kept, beside the best one"
    )
    keep_updates: bool = Field(False, description="keep nodes' updates after they were folded, and late ones")
    feed_kept: int = Field(
        100_000, ge=100, description="newest notes and versions per job that can be replayed to a browser"
    )
    alert_stalled_s: float = Field(
        600.0, gt=0, description="time without a new version after which there is an alert; or ten times the usual"
    )
    alert_disk_bytes: int = Field(2**30, ge=0, description="free space below which there is an alert")
    alert_webhook: str = Field("", description="address to which alerts are posted; empty: none")
    alert_webhook_secret: SecretStr = Field(SecretStr(""), description="secret with which they are signed")
    logs_bytes_max: int = Field(256 * 2**20, ge=2**20, description="text of all log lines that are kept")
    system_metrics_age_s: float = Field(
        86400.0, gt=0, description="age after which what nodes have measured of their machines is forgotten"
    )
    logs_age_s: float = Field(7 * 86400.0, gt=0, description="age after which log lines are forgotten")
    log_lines_per_s: float = Field(50.0, gt=0, description="log lines that a node may show; twenty times that at once")
    reports_kept: int = Field(200_000, ge=100, description="newest reports per job whose numbers charts are drawn from")
    rounds_kept: int = Field(
        10_000,
        ge=10,
        description="newest rounds per job that are kept one by one; of older ones every 2nd, 4th, 8th …, "
        "at most as many again: their bytes are added up",
    )
    traffic_flush_s: float = Field(1.0, gt=0, description="how often byte counts are written to the database")

    @property
    def reading_is_open(self) -> bool:
        """Whether a request without a credential may read, if no proxy has passed it on."""
        return self.host in LOOPBACK if self.open_reading is None else self.open_reading

    @cached_property
    def known_hosts(self) -> KnownHosts:
        """The hosts that requests may name."""
        advertised = urlsplit(self.advertise).hostname
        names = [*self.hosts, *names_of(self.host), *([advertised] if advertised else [])]
        return KnownHosts(names, addresses=not is_loopback(self.host))

    @property
    def url(self) -> str:
        """The SQLAlchemy URL of the database."""
        return self.database_url.get_secret_value() or f"sqlite:///{(self.data / 'shoal.db').absolute()}"
