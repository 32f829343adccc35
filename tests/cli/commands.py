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
from tests.cli.fake import FakeCoordinator, Raw, a_job, a_node, a_note, a_version

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


def job_answers(fake: FakeCoordinator, place: Path) -> None:
    """A job that can be looked at and told what to do."""
    fake.answers = {
        "GET /version": {"version": "0.1.0", "protocols": [1]},
        "GET /jobs": {"jobs": [a_job(), a_job(name="other", state="waiting", metrics={}, best=None, model=None)]},
        "GET /jobs/digits": a_job(),
        "GET /jobs/digits/nodes": {"nodes": [a_node(), a_node("node-2", state="stale", metrics={})]},
        "GET /jobs/digits/notes": {"notes": [a_note(1), a_note(2, text="lost [red]node[/]", kind="warning")]},
        "GET /jobs/digits/traffic": {"job": "digits", "rows": [], "total": {"up": 1, "down": 2}},
        **{f"POST /jobs/digits/{verb}": a_job(state="paused") for verb in ("pause", "resume", "stop")},
        "GET /jobs/digits/peers": {"roster": None, "peers": [], "now": None, "history": []},
        "POST /jobs/digits/switch": a_job(mode="away", mode_since="2026-01-02T03:04:07.000Z"),
    }


def node_answers(fake: FakeCoordinator, place: Path) -> None:
    """Two nodes."""
    info = {"device": "cpu", "shoal": "0.1.0", "torch": "2.13.0", "python": "3.11.7", "platform": "Linux x86_64"}
    nodes = [
        {"name": "a", "state": "online", "jobs": ["digits"], "last_seen_s": 1.0, "joined_at": "x", "info": info},
        {"name": "b", "state": "gone", "jobs": [], "last_seen_s": None, "joined_at": "x", "info": {}},
    ]
    fake.answers = {"GET /nodes": {"nodes": nodes}, "DELETE /nodes/a": None}


def token_answers(fake: FakeCoordinator, place: Path) -> None:
    """A token."""
    fake.answers = {"POST /tokens": {"token": "sht_x", "expires_at": "2026-01-02T03:04:05.000Z"}}


def run_answers(fake: FakeCoordinator, place: Path) -> None:
    """A job file, and a job that ends well."""
    (place / "job.toml").write_text(JOB)
    done = a_job(state="done", version=5)
    fake.answers = {
        "POST /jobs": a_job(state="waiting", version=0),
        "GET /jobs/digits": done,
        "GET /jobs/digits/nodes": {"nodes": [a_node()]},
    }
    fake.events = [[("hello", {}), ("version", a_version(1)), ("note", {"job": "digits", **a_note(1)}), ("job", done)]]


MODEL = b"a model" * 1000


def export_answers(fake: FakeCoordinator, place: Path) -> None:
    """A model and metrics."""
    digest = hashlib.sha256(MODEL).hexdigest()
    fake.answers = {
        "GET /jobs/digits": a_job(),
        "GET /jobs/digits/models/2": Raw(MODEL, {"ETag": f'"sha256:{digest}"'}),
        "GET /jobs/digits/versions": {"versions": [a_version(0, metrics={}), a_version(1), a_version(2)]},
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


COMMANDS = {
    "algorithms": Case(keys=("plugins",)),
    "compare": Case(("a.json", "b.json"), keys=("comparison", "runs"), prepare=run_files),
    "config show": Case(("--origin",), keys=("file", "settings")),
    "coordinator": Case(("--set", "prot=1"), 2, "usage.name"),
    "data get": Case(("cifar",), 2, "data.unknown"),
    "data list": Case(keys=("cache", "data_sets")),
    "demo": Case(("--split", "by-colour:1", "--clients", "1"), 2, "job.invalid"),
    "doctor": Case(keys=("healthy", "checks"), prepare=job_answers),
    "export": Case(("digits",), keys=("model",), prepare=export_answers),
    "jobs list": Case(keys=("jobs",), prepare=job_answers),
    "jobs pause": Case(("digits",), keys=("job",), prepare=job_answers),
    "jobs resume": Case(("digits",), keys=("job",), prepare=job_answers),
    "jobs show": Case(("digits",), keys=("job", "nodes", "notes", "traffic"), prepare=job_answers),
    "jobs stop": Case(("digits",), keys=("job",), prepare=job_answers),
    "join": Case(("--learner", "gone.py:learner", "--state", "state", "--token", "sht_x"), 2, "learner.missing"),
    "nodes list": Case(keys=("nodes",), prepare=node_answers),
    "nodes remove": Case(("a", "--yes"), keys=("removed",), prepare=node_answers),
    "peer key": Case(("mine",), keys=("public_key", "peer_id")),
    "peer new": Case(("job.toml", "--peer", "a="), 2, "learner.missing", prepare=job_file),
    "peer run": Case(("nowhere",), 2, "peer.folder"),
    "peers": Case(("digits",), keys=("peers",), prepare=job_answers),
    "run": Case(("job.toml",), keys=("job", "nodes"), prepare=run_answers),
    "simulate": Case(("job.toml",), 2, "learner.missing", prepare=job_file),
    "switch": Case(("digits", "gossip"), keys=("job",), prepare=job_answers),
    "token create": Case(keys=("token", "use"), prepare=token_answers),
}
