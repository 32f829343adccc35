"""Section `edge` of the settings: everything that a person can set about an edge client."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationInfo, field_validator, model_validator

from shoal.configuration import DEFAULT_URL, Url, UrlOrNone
from shoal.core.errors import Refused
from shoal.core.protocol.machine import HUB
from shoal.core.protocol.message import NodeInfo
from shoal.core.scheduling.selection import HOURS_MAX, TAGS_MAX, check_node_info
from shoal.validation.message_checks import NAME


def _job_name(job: str) -> str:
    """Return the name of a job. Raises `ValueError` for another text."""
    if not NAME.fullmatch(job):
        raise ValueError(f"{job!r} is not a job's name")
    return job


class EdgeSettings(BaseModel):
    """Section `edge` of the settings. `SHOAL_EDGE__NAME` in the environment sets `name`, and so on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: Url = Field(DEFAULT_URL, description="address of the coordinator")
    token: SecretStr = Field(SecretStr(""), description="one-time token (sht_…); needed the first time only")
    name: str = Field("", description="name of this node; empty: the machine's, in lower case")
    learner: str = Field("", description="your model and data: `file.py:name` or `package.module:name`")
    options: dict[str, str | int | float | bool] = Field(default_factory=dict, description="passed to the learner")
    jobs: list[str] = Field(
        default_factory=list, description="take part in these jobs alone, and end with them; empty: in all that run"
    )
    split_job: str = Field("", description="take part in this split job alone, and end with it")
    tags: list[str] = Field(
        default_factory=list, max_length=TAGS_MAX, description="tags by which jobs select this node, such as phone"
    )
    hours: list[str] = Field(
        default_factory=list,
        max_length=HOURS_MAX,
        description='when this node may be asked to train, daily, such as "22:00-06:00" (UTC); empty: at any time',
    )
    state_dir: Path | None = Field(None, description="folder of the credential, unsent reports and private memory")
    device: str = Field("auto", description="auto: the learner's own choice; or cpu, cuda, cuda:I, mps")
    precision: str = Field("", description="empty: the learner's own choice; or float32, bf16, fp16")
    threads: int = Field(
        0,
        ge=0,
        le=4096,
        description="threads of torch; 0: one for a model of up to 100,000 numbers, else torch's default",
    )
    trainer: Literal["auto", "thread", "process", "command"] = Field(
        "auto",
        description="where the learner trains; auto: in a process of its own if peers connect to this node; command: "
        "in a process that trainer_command starts",
    )
    trainer_command: str = Field(
        "",
        description="shell command that has `shoal trainer FOLDER` run elsewhere; {folder} and {name} in it: the "
        "folder of this start, and its last part",
    )
    trainer_cancel_command: str = Field(
        "", description="shell command that withdraws it when it is not needed; {output}: what trainer_command printed"
    )
    trainer_dir: Path | None = Field(
        None, description="folder that this machine shares with those of trainer_command; empty: in the state folder"
    )
    trainer_timeout_s: float = Field(
        60.0,
        ge=1,
        le=86400,
        description="seconds of silence after which the node and a process of trainer_command give each other up",
    )
    trainer_idle_s: float = Field(
        0.0, ge=0, description="seconds without a task after which that process ends until the next one; 0: it stays"
    )
    processes: int = Field(
        1, ge=1, le=1024, description="processes of this node that train together, each on its rows of a batch"
    )
    base_bytes_max: int = Field(64 * 2**30, ge=0, description="largest base model to fetch for a job; 0: none")
    insecure: bool = Field(False, description="allow plain http to public addresses, and any certificate")
    ca_file: Path | None = Field(None, description="certificates to trust instead of the system's (PEM)")
    client_cert: Path | None = Field(
        None, description="certificate chain (PEM) with this node's name, for coordinators that require one"
    )
    client_key: Path | None = Field(None, description="its private key (PEM)")
    poll_wait_s: float = Field(25.0, gt=0, le=300, description="seconds to hold a poll open, if the coordinator agrees")
    retry_pause_max_s: float = Field(30.0, gt=0, le=3600, description="longest pause between two tries")
    enrol_timeout_s: float = Field(
        120.0, ge=0, description="seconds to try to enrol, the first time, before ending with exit code 3; 0: no end"
    )
    coordinator_timeout_s: float = Field(
        0.0, ge=0, description="seconds without the coordinator after which to end; 0: never"
    )
    shutdown_train_s: float = Field(5.0, ge=0, le=3600, description="seconds that SIGTERM leaves to the current task")
    shutdown_upload_s: float = Field(3.0, ge=0, le=3600, description="seconds to deliver a finished report when ending")
    peer_listen: str = Field(
        "", description="host:port for other nodes; port 0: any; none: accept no connections; empty: take no part"
    )
    peer_url: UrlOrNone = Field("", description="address by which other nodes reach this one; empty: from peer_listen")
    peer_bytes_per_hour: float = Field(
        0.0, ge=0, le=1e18, description="bytes per hour to and from peers, for each job; 0: no limit"
    )
    peer_relay_mib_per_min_max: float = Field(
        256.0, ge=0, le=1e9, description="MiB per minute relayed for nodes that do not reach the coordinator; 0: none"
    )
    send_tracebacks: bool = Field(True, description="send the coordinator the traceback of a failed task")
    send_logs: Literal["off", "debug", "info", "warning", "error"] = Field(
        "info", description="lowest level of log lines sent to the coordinator, if log_level allows them; off: none"
    )
    system_metrics_s: float = Field(
        60.0,
        ge=0,
        le=86400,
        description="seconds between two measurements of this machine (CPU, memory, GPU, network, battery) that the "
        "coordinator is shown; 0: none",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="lowest level of log lines")
    log_form: Literal["auto", "console", "json"] = Field("auto", description="auto: console on a terminal, else JSON")

    @field_validator("name")
    @classmethod
    def _is_name(cls, name: str) -> str:
        if name and not NAME.fullmatch(name):
            raise ValueError("a name has 1 to 63 of a-z, 0-9, '.', '_', '-' and begins with a letter or digit")
        if name == HUB:
            raise ValueError(f"no node may be called {HUB}: choose another name")
        return name

    @field_validator("jobs")
    @classmethod
    def _are_jobs(cls, jobs: list[str]) -> list[str]:
        return list(dict.fromkeys(map(_job_name, jobs)))

    @field_validator("split_job")
    @classmethod
    def _is_job(cls, job: str) -> str:
        return job and _job_name(job)

    @field_validator("tags", "hours")
    @classmethod
    def _are_known(cls, words: list[str], info: ValidationInfo) -> list[str]:
        try:
            check_node_info(NodeInfo(tuple(words)) if info.field_name == "tags" else NodeInfo(hours=tuple(words)))
        except Refused as error:
            raise ValueError(f"{error.message}: {error.hint}") from None
        return list(dict.fromkeys(words))

    @model_validator(mode="after")
    def _has_a_key(self) -> Self:
        if (self.client_cert is None) != (self.client_key is None):
            raise ValueError("client_cert and client_key belong together: give both, or none")
        return self

    @model_validator(mode="after")
    def _has_a_command(self) -> Self:
        if (self.trainer == "command") != bool(self.trainer_command.strip()):
            raise ValueError('trainer = "command" and trainer_command belong together: give both, or none')
        return self

    @model_validator(mode="after")
    def _can_have_processes(self) -> Self:
        if self.split_job and (self.trainer == "command" or self.processes > 1):
            text = 'a split job trains in the node\'s own process: leave trainer = "command" and processes out'
            raise ValueError(text)
        if self.trainer == "thread" and self.processes > 1:
            raise ValueError('a thread is in one process: leave trainer = "thread" or processes out')
        return self

    @property
    def trust(self) -> dict[str, Any]:
        """Return the arguments about certificates for a link to the coordinator."""
        own = None if self.client_cert is None or self.client_key is None else (self.client_cert, self.client_key)
        return {"insecure": self.insecure, "ca_file": self.ca_file, "client_cert": own}

    @property
    def node(self) -> str:
        """Return the name of this node."""
        return self.name or machine_name(socket.gethostname())

    @property
    def folder(self) -> Path:
        """Return the state folder: `$XDG_STATE_HOME/shoal/NAME` unless `state_dir` names another."""
        if self.state_dir is not None:
            return self.state_dir.expanduser()
        home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        return Path(home) / "shoal" / self.node


def machine_name(host: str) -> str:
    """Return a host name as a node's name: its first part in lower case, without forbidden characters."""
    plain = re.sub(r"[^a-z0-9_-]+", "-", host.lower().partition(".")[0]).strip("-_")[:63]
    return "node" if plain in ("", HUB) else plain
