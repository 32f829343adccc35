"""Every command with arguments under which it ends soon, and what it should answer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.core import TyperGroup
from typer.main import get_command

from shoal.cli.app import app
from shoal.jobs.spec import parse_job
from shoal.trust.documents import Charter, Manifest, Roster, config_sha, sign_document
from shoal.trust.keys import SigningKey
from tests.support.coordinator_views import a_job, a_job_event, a_node, a_version
from tests.support.fake_coordinator import FakeCoordinator, raw

JOB = """
name = "digits"
rounds = 2
learner = "shoal.learn.digits:learner"
"""


def leaves() -> dict[str, Any]:
    """Every command that can be run: its words -> typer's object."""
    return dict(_leaves(get_command(app), ()))


def _leaves(command: Any, path: tuple[str, ...]) -> list[tuple[str, Any]]:
    if not isinstance(command, TyperGroup):
        return [(" ".join(path), command)]
    return [found for name, inner in command.commands.items() for found in _leaves(inner, (*path, name))]


@dataclass(frozen=True)
class Case:
    """Arguments, what the coordinator answers, and what comes of it."""

    arguments: tuple[str, ...] = ()
    exit_code: int = 0
    error: str = ""
    keys: tuple[str, ...] = ()
    prepare: Callable[[FakeCoordinator, Path], None] = lambda fake, place: None


METRICS = b"""# TYPE shoal_connections gauge
shoal_connections 12.0
shoal_connections_max 10000.0
shoal_nodes{state="online"} 3.0
process_open_fds 40.0
process_max_fds 1024.0
"""


def job_answers(fake: FakeCoordinator, place: Path) -> None:
    """A job that can be looked at and told what to do."""
    fake.answers = {
        "GET /version": {"version": "0.1.0", "protocols": [1]},
        "GET /metrics": raw(METRICS, {"Content-Type": "text/plain"}),
        "GET /jobs": {"jobs": [a_job(), a_job(name="other", state="waiting", metrics={}, best=None, model=None)]},
        "GET /jobs/digits": a_job(),
        "GET /jobs/digits/nodes": {"nodes": [a_node(), a_node("node-2", state="stale", metrics={})]},
        "GET /jobs/digits/events": {
            "events": [a_job_event(1), a_job_event(2, text="lost [red]node[/]", kind="warning")]
        },
        "GET /jobs/digits/traffic": {"job": "digits", "rows": [], "total": {"up": 1, "down": 2}},
        **{f"POST /jobs/digits/{verb}": a_job(state="paused") for verb in ("pause", "resume", "stop")},
        "POST /jobs": a_job(name="digits-2", state="waiting"),
        "GET /jobs/over": a_job(name="over", state="done", ended_at="2026-01-02T04:04:05.000Z"),
        "DELETE /jobs/over": None,
        "PATCH /jobs/digits": a_job(changed={"algorithm.lr": 0.05}),
        "PUT /jobs/digits/tags": a_job(tags=["baseline"]),
        "GET /jobs/digits/peers": {"roster": None, "peers": [], "now": None, "history": []},
        "POST /jobs/digits/switch": a_job(mode="gossip", mode_since="2026-01-02T03:04:07.000Z"),
    }


def failure_answers(fake: FakeCoordinator, place: Path) -> None:
    """Two failures, of which one has much to say."""
    row = {"id": 2, "at": "2026-01-02T03:04:05.000Z", "job": "digits", "node": "a", "task": "1.7", "version": 3}
    row |= {"kind": "train", "phase": "train", "error": "ValueError: [red]no[/] data", "traceback": "File x, line 3"}
    row |= {"outcome": "replaced", "outcome_why": "1 of 4 lost: 1 asked in their place"}
    other = {**row, "id": 1, "phase": "contact", "error": "no sign of life", "traceback": "", "outcome": "awaited"}
    fake.answers = {"GET /failures": {"failures": [row, other], "before": None}}


def alert_answers(fake: FakeCoordinator, place: Path) -> None:
    """One that stands."""
    row = {
        "id": 3,
        "kind": "node-lost",
        "job": "",
        "jobs": ["digits"],
        "node": "a",
        "text": "[red]a[/] has fallen silent",
    }
    row |= {"raised_at": "2026-01-02T03:04:05.000Z", "cleared_at": None, "acknowledged_at": "2026-01-02T03:05:05.000Z"}
    fake.answers = {"GET /alerts": {"alerts": [row], "before": None}, "POST /alerts/3/acknowledge": row}


def log_answers(fake: FakeCoordinator, place: Path) -> None:
    """A line of a node's, and one of the coordinator's."""
    line = {"id": 1, "at": "2026-01-02T03:04:05.678Z", "node": "a", "job": "digits", "round": 3, "level": "warning"}
    line |= {"text": "task [red]failed[/]\x1b[2J", "fields": {"why": "no data"}}
    own = {**line, "id": 2, "node": "", "job": "", "round": None, "level": "info", "text": "ready", "fields": {}}
    fake.answers = {"GET /logs": {"lines": [line, own], "older": False}}


def node_answers(fake: FakeCoordinator, place: Path) -> None:
    """Two nodes."""
    info = {"device": "cpu", "shoal": "0.1.0", "torch": "2.13.0", "python": "3.11.7", "platform": "Linux x86_64"}
    nodes = [
        {"name": "a", "state": "online", "jobs": ["digits"], "last_seen_s": 1.0, "joined_at": "x", "info": info},
        {"name": "b", "state": "gone", "jobs": [], "last_seen_s": None, "joined_at": "x", "info": {}},
    ]
    nodes = [{**node, "availability": "active"} for node in nodes]
    fake.answers = {"GET /nodes": {"nodes": nodes}, "GET /nodes/a": nodes[0], "DELETE /nodes/a": None}
    fake.answers |= {"PUT /nodes/a/availability": nodes[0]}


def token_answers(fake: FakeCoordinator, place: Path) -> None:
    """A token."""
    fake.answers = {"POST /tokens": {"token": "sht_x", "expires_at": "2026-01-02T03:04:05.000Z"}}
    row = {"id": "sht_7SpQetou", "role": "node", "name": None, "uses": 5000, "uses_left": 4321, "sessions": 0}
    row |= {"created_at": "2026-01-02T03:04:05.000Z", "expires_at": "2026-01-02T04:04:05.000Z"}
    fake.answers |= {"GET /tokens": {"tokens": [row]}, "DELETE /tokens/sht_7SpQetou": None}


def run_answers(fake: FakeCoordinator, place: Path) -> None:
    """A job file, and a job that ends well."""
    (place / "job.toml").write_text(JOB)
    done = a_job(state="done", version=5)
    fake.answers = {
        "POST /jobs": a_job(state="waiting", version=0),
        "GET /jobs/digits": done,
        "GET /jobs/digits/nodes": {"nodes": [a_node()]},
    }
    fake.events = [
        [("hello", {}), ("version", a_version(1)), ("job_event", {"job": "digits", **a_job_event(1)}), ("job", done)]
    ]


MODEL = b"a model" * 1000


def export_answers(fake: FakeCoordinator, place: Path) -> None:
    """A model and metrics."""
    digest = hashlib.sha256(MODEL).hexdigest()
    fake.answers = {
        "GET /jobs/digits": a_job(),
        "GET /jobs/digits/models/2": raw(MODEL, {"ETag": f'"sha256:{digest}"'}),
        "GET /jobs/digits/versions": {"versions": [a_version(0, metrics={}), a_version(1), a_version(2)]},
    }


def model_answers(fake: FakeCoordinator, place: Path) -> None:
    """Three models, of which one is promoted and another is gone."""
    row = {"version": 2, "digest": "ab" * 32, "bytes": 19_768, "closed_at": "2026-01-02T03:04:05.000Z", "kept": True}
    row |= {"metrics": {"eval/accuracy": 0.93, "eval/loss": 0.25}, "labels": [], "checkpoint": False}
    named = {"label": "production", "at": "2026-01-02T03:04:06.000Z", "why": "passed [red]the[/] audit"}
    rows = [
        row,
        {**row, "version": 1, "labels": [named], "checkpoint": True},
        {**row, "version": 0, "metrics": {}, "kept": False},
    ]
    fake.answers = {
        "GET /jobs/digits": a_job(labels={"production": 1}),
        "GET /jobs/digits/models": {"models": rows, "next": 0},
        "PUT /jobs/digits/labels/production": a_job(labels={"production": 2}),
        "DELETE /jobs/digits/labels/production": a_job(),
    }


def job_file(fake: FakeCoordinator, place: Path) -> None:
    """A job file that can't be run."""
    (place / "job.toml").write_text(JOB.replace("digits:learner", "digits:nothing"))


def run_files(fake: FakeCoordinator, place: Path) -> None:
    """Two runs as files, in the form that other releases must go on reading."""
    for name, share in (("a", 1.0), ("b", 0.5)):
        versions = [
            {"number": n, "opened_s": n - 1.0, "closed_s": n, "reports": 4, "metrics": {"eval/accuracy": 0.9 + n / 100}}
            | {"up_bytes": int(share * 100 * n), "down_bytes": int(share * 200 * n)}
            for n in range(4)
        ]
        run = {"format": "shoal-run/1", "name": name, "state": "done", "algorithm": "fedavg", "schedule": "rounds"}
        run |= {"seed": 1, "origin": "simulation", "up_bytes": int(share * 310), "down_bytes": int(share * 620)}
        (place / f"{name}.json").write_text(json.dumps(run | {"versions": versions}))


def lost_coordinator(fake: FakeCoordinator, place: Path, **more: str) -> None:
    """A coordinator without jobs, its key of old, and what a node has kept of one job."""
    key, spec = SigningKey.make(), parse_job({"name": "digits", **more}).model_dump(mode="json")
    digest = hashlib.sha256(MODEL).hexdigest()
    charter = Charter("digits", config_sha(spec), digest, key.public_key, key.public_key)
    roster, manifest = Roster("digits", 1, ()), Manifest("digits", 1, 3, digest, (), 3)
    charter_text, roster_text, sealed = (
        sign_document(one, key, charter).decode() for one in (charter, roster, manifest)
    )
    kept = {
        "job": {"spec": spec, "created_at": "2026-01-02T03:04:05.000Z"},
        "documents": {"charter": charter_text, "roster": roster_text},
        "checkpoints": {"checkpoints": [{"manifest": sealed, "model": [digest, len(MODEL)]}]},
    }
    folder = place / "node/jobs/digits"
    for name in ("peer", "blobs"):
        (folder / name).mkdir(parents=True)
    for name, values in kept.items():
        (folder / f"peer/{name}.json").write_text(json.dumps(values))
    (folder / "blobs" / digest).write_bytes(MODEL)
    (place / "node/credential.json").write_text(json.dumps({"name": "a"}))
    (place / "key.pem").write_bytes(key.pem())
    (place / "key.pem").chmod(0o600)
    begun = a_job(restored_from={"node": "a", "version": 3, "term": 1002})
    fake.answers = {"GET /jobs": {"jobs": []}, f"PUT /blobs/{digest}": {}, "POST /jobs": begun}


COMMANDS = {
    "alerts": Case(("--active", "--acknowledge", "3"), keys=("alerts",), prepare=alert_answers),
    "trainer": Case(("nowhere",), 1, "trainer.unwanted"),
    "conformance": Case(("--only", "inti"), exit_code=2, error="usage.case"),
    "new": Case(("mine",), keys=("folder", "template", "files")),
    "algorithms": Case(keys=("plugins",)),
    "compare": Case(("a.json", "b.json"), keys=("comparison", "runs"), prepare=run_files),
    "config show": Case(("--origin",), keys=("file", "settings")),
    "coordinator": Case(("--set", "prot=1"), 2, "usage.name"),
    "data get": Case(("cifar",), 2, "data.unknown"),
    "data list": Case(keys=("cache", "data_sets")),
    "demote": Case(("digits",), keys=("job",), prepare=model_answers),
    "demo": Case(("--split", "by-color:1", "--clients", "1"), 2, "job.invalid"),
    "doctor": Case(keys=("healthy", "checks"), prepare=job_answers),
    "export": Case(("digits",), keys=("model",), prepare=export_answers),
    "failures": Case(("digits", "--node", "a"), keys=("failures",), prepare=failure_answers),
    "infer": Case(("a.safetensors", "--learner", "gone.py:learner"), 2, "learner.missing"),
    "jobs clone": Case(("digits", "--set", "algorithm.lr=0.5"), keys=("job",), prepare=job_answers),
    "jobs list": Case(keys=("jobs", "split_jobs"), prepare=job_answers),
    "jobs pause": Case(("digits",), keys=("job",), prepare=job_answers),
    "jobs remove": Case(("over", "--yes"), keys=("removed",), prepare=job_answers),
    "jobs resume": Case(("digits",), keys=("job",), prepare=job_answers),
    "jobs show": Case(("digits",), keys=("job", "nodes", "events", "traffic"), prepare=job_answers),
    "jobs stop": Case(("digits",), keys=("job",), prepare=job_answers),
    "jobs set": Case(("digits", "algorithm.lr=0.05"), keys=("job",), prepare=job_answers),
    "jobs tag": Case(("digits", "baseline"), keys=("job",), prepare=job_answers),
    "join": Case(("--learner", "gone.py:learner", "--state-dir", "state", "--token", "sht_x"), 2, "learner.missing"),
    "logs": Case(("digits", "--level", "warning"), keys=("logs",), prepare=log_answers),
    "models": Case(("digits",), keys=("models", "more"), prepare=model_answers),
    "nodes activate": Case(("a",), keys=("node",), prepare=node_answers),
    "nodes block": Case(("a",), keys=("node",), prepare=node_answers),
    "nodes drain": Case(("a",), keys=("node",), prepare=node_answers),
    "nodes list": Case(keys=("nodes",), prepare=node_answers),
    "nodes remove": Case(("a", "--yes"), keys=("removed",), prepare=node_answers),
    "peer export": Case(("nowhere",), 2, "peer.folder"),
    "peer invite": Case(("nowhere",), 2, "peer.folder"),
    "peer join": Case(("shoal-join-half",), 2, "usage.invitation"),
    "peer key": Case(("mine",), keys=("public_key", "peer_id")),
    "peer init": Case(("job.toml", "--peer", "a="), 2, "learner.missing", prepare=job_file),
    "peer run": Case(("nowhere",), 2, "peer.folder"),
    "peer start": Case(("job.toml",), 2, "learner.missing", prepare=job_file),
    "peer status": Case(("nowhere",), 2, "peer.folder"),
    "jobs peers": Case(("digits",), keys=("peers",), prepare=job_answers),
    "promote": Case(("digits", "best"), keys=("job",), prepare=model_answers),
    "restore": Case(
        ("--from", "node", "--key", "key.pem", "--yes"), keys=("jobs", "refused"), prepare=lost_coordinator
    ),
    "run": Case(("job.toml",), keys=("job", "nodes"), prepare=run_answers),
    "simulate": Case(("job.toml",), 2, "learner.missing", prepare=job_file),
    "serve": Case(("digits", "--learner", "gone.py:learner", "--host", "0.0.0.0"), 2, "usage.invalid"),
    "switch": Case(("digits", "gossip"), keys=("job",), prepare=job_answers),
    "token list": Case(keys=("tokens",), prepare=token_answers),
    "token revoke": Case(("sht_7SpQetouAndTheRest",), keys=("revoked",), prepare=token_answers),
    "token create": Case(keys=("token", "use"), prepare=token_answers),
}
