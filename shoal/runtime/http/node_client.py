"""The node protocol over HTTP: one method for each request, frames in and out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote

from shoal.core.protocol.message import Ack, CoordinatorAlive, Report, TaskFailed, TaskId, TaskStatus
from shoal.runtime.http.blob_transfers import BlobTransfers
from shoal.runtime.http.node_link import NodeLink, parse_terms
from shoal.runtime.http.retry import RETRY_AFTER_S_MAX
from shoal.runtime.observability import tracing
from shoal.trust.documents import Charter, Manifest, Roster
from shoal.validation import strict_json
from shoal.wire import codec, split_codec

POLL_GRACE_S = 15.0
"""Seconds that the answer to a long poll may be late."""
SPLIT_LEG_S = 300.0
"""Seconds that the coordinator may take to compute its part of a batch, and again those since its checkpoint."""
PAUSE_HEADER = "Shoal-Retry-After"
SMALL_BYTES_MAX = 64 * 1024
LOGS_WAIT_S_MAX = 600.0
PAPERS_BYTES_MAX = 2 * (Charter.BYTES_MAX + Roster.BYTES_MAX)
"""As JSON in JSON: quotation marks are escaped."""


@dataclass(frozen=True)
class NodeWelcome:
    """A coordinator's answer to hello: its lease and the proposed intervals."""

    name: str
    lease_s: float
    heartbeat_s: float
    wait_s_max: float


@dataclass(frozen=True)
class NodeContact:
    """A node's key and addresses as a peer. `is_reachable`: whether it can be called at `urls` (else none)."""

    public_key: str
    urls: tuple[str, ...]
    is_reachable: bool


@dataclass(frozen=True)
class JobLease:
    """A sign of life of the coordinator, for a job that its nodes may carry on: its term, and its roster's version."""

    job: str
    term: int
    roster: int


@dataclass(frozen=True)
class Polled:
    """Answer to a poll. `frame`: the new message; None if there was none in time."""

    frame: codec.Frame | None
    leases: tuple[JobLease, ...] = ()
    pause_s: float = 0.0
    """Pause in seconds that the coordinator asks for, or 0."""
    traceparent: str = ""
    """Trace context of the task's round, where the coordinator traces."""


@dataclass(frozen=True)
class JobDocuments:
    """A job's charter and roster as they were signed. `version`: of the roster. `certificate`: this node's, if any."""

    version: int
    charter: bytes
    roster: bytes
    certificate: bytes = b""


class NodeClient:
    """A node's client of one coordinator. `link`: its connection; `blobs`: its transfers of models and updates.

    The keyword arguments are those of `NodeLink`. All methods block, and raise what `Link` raises.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self.link = NodeLink(url, **options)
        self.blobs = BlobTransfers(self.link)

    def abort(self) -> None:
        """Abort all running requests and transfers, from any thread; the client is unusable afterwards."""
        self.blobs.abort()
        self.link.abort()

    def close(self) -> None:
        """End the connections that are idle."""
        self.link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def enrol(self, token: str, name: str, info: Mapping[str, Any], key: str) -> tuple[str, str]:
        """Turn a one-time token into (credential, name). The same `key` asks for the same answer again."""
        body = {"token": token, "name": name, "info": dict(info), "protocols": list(codec.PROTOCOLS)}
        answer = self.link.json("POST", "/api/v1/enrol", body=body, headers={"Idempotency-Key": key}, own=True)
        with self.link.decoding():
            codec.negotiate([answer["protocol"]])
            return str(answer["credential"]), str(answer["name"])

    def hello(
        self, info: Mapping[str, Any], peer: NodeContact | None = None, layout: Mapping[str, str] | None = None
    ) -> NodeWelcome:
        """Say that this node's process has started. Without `peer` it takes no part in gossip. `layout`: the tensors of
        its learner's model, so that others can be told which of them differ."""
        body: dict[str, Any] = {"info": dict(info), "protocols": list(codec.PROTOCOLS)}
        if layout:
            body["layout"] = dict(layout)
        if peer is not None:
            body["peer"] = {"public_key": peer.public_key, "urls": list(peer.urls), "is_reachable": peer.is_reachable}
        answer = self.link.json("POST", "/api/v1/hello", body=body, own=True)
        with self.link.decoding():
            codec.negotiate([answer["protocol"]])
            self.blobs.uses_presigned_urls = answer.get("targets") is True
            seconds = [float(answer[name]) for name in ("lease_s", "heartbeat_s", "wait_s_max")]
            return NodeWelcome(str(answer["name"]), *seconds)

    def job(self, job: str) -> dict[str, Any]:
        """Return a job's description; `spec` is its job file."""
        found = self.link.json("GET", f"/api/v1/jobs/{quote(job)}", own=True)
        if not isinstance(found, dict):
            raise self.link.foreign_answer()
        return found

    def split_job(self, job: str) -> dict[str, Any]:
        """Return the description of a split job."""
        found = self.link.json("GET", f"/api/v1/split/{quote(job)}", own=True)
        if not isinstance(found, dict):
            raise self.link.foreign_answer()
        return found

    def split(self, job: str, frame: bytes, answer_bytes_max: int, wait_s: float) -> split_codec.SplitFrame | None:
        """Send a message of a split job; return the answer, or None if there is none after `wait_s` seconds.

        `answer_bytes_max`: of the answer's payload.
        """
        path, headers = f"/api/v1/split/{quote(job)}", {"Content-Type": codec.MEDIA_TYPE}
        more: dict[str, Any] = {"params": {"wait_s": f"{wait_s:g}"}, "read_s": SPLIT_LEG_S + wait_s}
        with self.link.exchange("POST", path, headers=headers, content=frame, own=True, **more) as answer:
            data = answer.read(split_codec.frame_bytes_max(answer_bytes_max))
            if answer.status == 204:
                return None
        with self.link.decoding():
            return split_codec.decode(data, answer_bytes_max)

    def poll_work(self, wait_s: float, held: Mapping[str, tuple[int, ...]], jobs: tuple[str, ...] = ()) -> Polled:
        """Return the current task if it differs from the one held, and the coordinator's lease in each job."""
        params = [("wait_s", f"{wait_s:g}")]
        params += [("held", f"{job}:{'.'.join(map(str, task))}") for job, task in sorted(held.items())]
        params += [("job", job) for job in jobs]
        patience_s = wait_s + POLL_GRACE_S
        with self.link.exchange("GET", "/api/v1/work", params=params, read_s=patience_s, own=True) as answer:
            data = answer.read(codec.FRAME_BYTES_MAX)  # even of an empty answer, for the connection to be used again
            with self.link.decoding():
                leases = tuple(JobLease(*one) for one in parse_terms(answer.headers.get("shoal-term", "")))
            pause_s = _seconds(answer.headers.get(PAUSE_HEADER, ""))
            parent = tracing.parent_of(answer.headers.get(tracing.HEADER, ""))
            return Polled(None if answer.status == 204 else self.link.frame(data), leases, pause_s, parent)

    def report(self, job: str, report: Report, payload: bytes = b"") -> Ack:
        """Send a report, its body inline where it is given. Raises `Refused` when it can never count."""
        return self._send(job, "reports", codec.encode(codec.Frame(job, report, payload)), report.task)

    def fail(self, job: str, failure: TaskFailed) -> Ack:
        """Say that a task was not done."""
        return self._send(job, "failures", codec.encode_head(job, failure), failure.task)

    def status(self, job: str, status: TaskStatus) -> None:
        """Say where this node is in the middle of a task."""
        path, headers = f"/api/v1/jobs/{quote(job)}/status", {"Content-Type": codec.MEDIA_TYPE}
        with self.link.exchange(
            "POST", path, headers=headers, content=codec.encode_head(job, status), own=True
        ) as answer:
            answer.read(SMALL_BYTES_MAX)

    def heartbeat(self, job: str, task: TaskId, progress: float) -> None:
        """Say how far the work is."""
        body = {"job": job, "task": f"{task[0]}.{task[1]}", "progress": round(progress, 4)}
        self.link.json("POST", "/api/v1/heartbeat", body=body, own=True)

    def logs(self, incarnation: str, lines: Sequence[Mapping[str, Any]], dropped: int, read_s: float) -> float:
        """Show what this process (`incarnation`) has logged; seconds to wait before more is welcome."""
        body = {"incarnation": incarnation, "lines": list(lines), "dropped": dropped}
        answer = self.link.json("POST", "/api/v1/logs", body=body, read_s=read_s, own=True)
        with self.link.decoding():
            return min(max(float(answer["wait_s"]), 0.0), LOGS_WAIT_S_MAX)

    def system_metrics(self, sample: Mapping[str, float | bool], read_s: float) -> None:
        """Show how this machine does."""
        self.link.json("POST", "/api/v1/system-metrics", body=dict(sample), read_s=read_s, own=True)

    def leave(self, read_s: float) -> None:
        """Return all tasks to the coordinator."""
        self.link.json("POST", "/api/v1/leave", read_s=read_s, own=True)

    # In place of the coordinator

    def trust_documents(self, job: str, held: int = 0) -> JobDocuments | None:
        """Return the job's trust documents; None if roster version `held` is the newest.

        Raises `Refused`: `trust.none` (never), `trust.early` (not yet).
        """
        headers = {"If-None-Match": f'"{held}"'} if held else {}
        path = f"/api/v1/jobs/{quote(job)}/trust"
        with self.link.exchange("GET", path, headers=headers, own=True, accept=304) as answer:
            data = answer.read(PAPERS_BYTES_MAX)
            if answer.status == 304:
                return None
        with self.link.decoding():
            found = strict_json.loads(data)
            charter, roster = str(found["charter"]), str(found["roster"])
            certificate = str(found.get("certificate", "")).encode("ascii")
            return JobDocuments(int(found["version"]), charter.encode("ascii"), roster.encode("ascii"), certificate)

    def manifest(self, job: str, held: int = -1) -> bytes | None:
        """Return the newest version's manifest; None if `held` is the newest. Raises as `trust_documents`."""
        headers = {"If-None-Match": f'"{held}"'} if held >= 0 else {}
        path = f"/api/v1/jobs/{quote(job)}/manifest"
        with self.link.exchange("GET", path, headers=headers, own=True, accept=304) as answer:
            data = answer.read(2 * Manifest.BYTES_MAX)
            if answer.status == 304:
                return None
        with self.link.decoding():
            return str(strict_json.loads(data)["manifest"]).encode("ascii")

    def ping(self, job: str, term: int) -> CoordinatorAlive:
        """Ask whether the coordinator is there, and tell it this node's term; its own is above. -1: only ask.

        Raises `Refused`: `job.over` when the job has ended, `term.leap` for a term that cannot be.
        """
        found = self.link.json("POST", f"/api/v1/jobs/{quote(job)}/ping", body={"term": term}, own=True)
        with self.link.decoding():
            return CoordinatorAlive(int(found["term"]))

    def join(self, job: str, gossip_rounds: tuple[int, int] | None) -> codec.Frame:
        """Tell the coordinator that this node is back, with (term, local rounds) of the time in mode gossip; return its
        answer."""
        content = json.dumps({"gossip_rounds": gossip_rounds}).encode()
        path, headers = f"/api/v1/jobs/{quote(job)}/join", {"Content-Type": "application/json"}
        with self.link.exchange("POST", path, headers=headers, content=content, own=True) as answer:
            return self.link.frame(answer.read(codec.FRAME_BYTES_MAX))

    def report_peer_status(self, job: str, status: Mapping[str, Any]) -> None:
        """Report this node's state as a peer. Sums are those of this process (`process_number`)."""
        self.link.json("POST", f"/api/v1/jobs/{quote(job)}/peer-status", body=dict(status), own=True)

    def _send(self, job: str, what: str, frame: bytes, task: TaskId) -> Ack:
        path, headers = f"/api/v1/jobs/{quote(job)}/{what}", {"Content-Type": codec.MEDIA_TYPE}
        with self.link.exchange("POST", path, headers=headers, content=frame, own=True) as answer:
            ack = self.link.frame(answer.read(codec.FRAME_BYTES_MAX)).message
        if not isinstance(ack, Ack) or ack.task != task:
            raise self.link.foreign_answer()
        return ack


def _seconds(text: str) -> float:
    """Return a pause in seconds, at most `RETRY_AFTER_S_MAX`; 0 for anything else."""
    plain = text.replace(".", "", 1).isdecimal() and text.isascii() and len(text) < 20
    return min(float(text), RETRY_AFTER_S_MAX) if plain else 0.0
