"""Common parts of the demos: processes on this machine, the bundled job, ports."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.commands.doctor import is_free
from shoal.cli.terminal.output import out
from shoal.cli.terminal.text import seconds
from shoal.core.errors import NotAllowed, Refused, ShoalError, Unreachable
from shoal.extras import install_hint

if TYPE_CHECKING:
    from shoal.cli.process.processes import DemoProcess, ProcessGroup
    from shoal.client.api import CoordinatorApi

HOST = "127.0.0.1"
PORT = 8080
PORTS = range(20_000, 32_768)
READY_S = 60.0
RUN_S = 1800.0
JOB, DRIFT_JOB = "digits", "digits-drift"
GOSSIP = {
    "allowed": True,
    "coordinator_timeout_s": 3.0,
    "suspicion_s": 2.0,
    "min_gossip_s": 2.0,
    "open_exchanges_timeout_s": 5.0,
    "probe_interval_s": 0.5,
}
"""With --failover: all in less time than a job in earnest would allow."""
EXAMPLES, CLASSES = 1437, 10
"""Number of examples and classes to divide."""
NEEDED = ("cryptography", "fastapi", "sqlalchemy", "torch")
"""Packages of the extra demo, one of each part."""


@dataclass(frozen=True)
class DemoOptions:
    """Options of the command."""

    rounds: Annotated[int, typer.Option(min=1, help="rounds of federated averaging")] = 30
    clients: Annotated[
        int, typer.Option(min=1, max=64, help="edge clients, each a process with its own data; one more with --gossip")
    ] = 4
    split: Annotated[
        str,
        typer.Option(
            help="division of the digits: iid, dirichlet:ALPHA, shards:N, quantity:BETA; always iid with --drift"
        ),
    ] = "dirichlet:0.5"
    seed: Annotated[int, typer.Option(min=0, help="seed of the division, the model and the batches")] = 0
    drift: Annotated[
        bool, typer.Option("--drift", help="dynamic averaging on streams whose labels change half-way")
    ] = False
    gossip: Annotated[bool, typer.Option("--gossip", help="no coordinator: peers that mix their models")] = False
    failover: Annotated[
        bool, typer.Option("--failover", help="kill the coordinator during the job, continue as peers, restart it")
    ] = False


@dataclass(frozen=True)
class DemoPlan:
    """Options of the command with ports and device."""

    asked: DemoOptions
    port: int
    device: str = "cpu"
    peer_ports: tuple[int, ...] = ()

    @property
    def url(self) -> str:
        """The URL of the coordinator."""
        return f"http://{HOST}:{self.port}"

    @property
    def job(self) -> str:
        """The job's name."""
        return DRIFT_JOB if self.asked.drift else JOB

    @property
    def page(self) -> str:
        """The URL of the job in the dashboard."""
        return f"{self.url}/jobs/{self.job}"


def device_of(asked: str | None) -> str:
    """Return the device of the demo's learners: the processor, unless another is asked for. A step of their model takes
    longer on a card, and each process would hold some of its memory."""
    return "cpu" if asked in (None, "auto") else asked


def check(asked: DemoOptions, parts: int) -> None:
    """Raise `ShoalError` for options that the processes would refuse."""
    missing = [name for name in NEEDED if not find_spec(name)]
    if missing:
        text = f"the demo needs {' and '.join(missing)}, not installed"
        raise ShoalError(text, code="usage.extra", hint=install_hint("demo"))
    from shoal.learn.data.partition import divided

    divided(asked.split, [example % CLASSES for example in range(EXAMPLES)], parts, 0)
    if asked.failover and (asked.drift or asked.gossip or asked.clients < 2 or asked.rounds < 3):
        hint = "leave out --drift and --gossip, and ask for at least 2 clients and 3 rounds"
        raise ShoalError("this demo would not show a failover", code="usage.invalid", hint=hint)


def free_port(wanted: int) -> int:
    """Return the wanted port if it is free, else another free one.

    It is not one of those for outgoing connections, which the system might use before the server listens.
    """
    import random

    for port in (wanted, *random.sample(PORTS, len(PORTS))):
        if port and is_free(HOST, port):
            return port
    raise ShoalError(f"no port of {HOST} is free", code="port.in-use", hint="end the programs that use them")


def free_ports(count: int) -> tuple[int, ...]:
    """Return distinct free ports."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port(0))
    return tuple(sorted(ports))


def start(processes: ProcessGroup, plan: DemoPlan) -> list[DemoProcess]:
    """Start all processes; the clients wait for their token from the coordinator."""
    start_coordinator(processes, plan)
    options = {**spec(plan)["options"], "parts": plan.asked.clients, "seed": plan.asked.seed}
    nodes = []
    for part in range(plan.asked.clients):
        arguments = ["join", plan.url, "--token", "-", "--learner", "shoal.learn.digits:learner"]
        arguments += [f"--option={key}={value}" for key, value in {"part": part, **options}.items()]
        arguments += ["--name", f"node-{part + 1}", "--state-dir", f"node-{part + 1}", "--device", plan.device]
        arguments += [f"--peer-listen={HOST}:{plan.peer_ports[part]}"] if plan.asked.failover else []
        nodes.append(processes.start(f"node-{part + 1}", arguments, imports="shoal_edge_client shoal.learn.digits"))
    return nodes


def start_coordinator(processes: ProcessGroup, plan: DemoPlan) -> None:
    """Start or restart the coordinator with the same data folder."""
    processes.start("coordinator", ["coordinator", "--host", HOST, "--port", str(plan.port), "--data", "data"])


@contextmanager
def connected(processes: ProcessGroup, plan: DemoPlan) -> Iterator[CoordinatorApi]:
    """Yield a client of the coordinator when it is ready. Raises `ShoalError` on a time-out."""
    from shoal.cli.connection import connect

    token = await_coordinator(processes, plan, f"a coordinator and {plan.asked.clients} clients")
    with connect(plan.url, token.read_text(encoding="utf-8").strip()) as api:
        yield api


def await_coordinator(processes: ProcessGroup, plan: DemoPlan, what: str) -> Path:
    """Wait for the coordinator and return the file of its operator's token. Raises `ShoalError` on a time-out."""
    token = processes.folder / "data" / "operator.token"
    due = time.monotonic() + READY_S
    with out.progress("starting", None) as advance:
        while not is_ready(plan.url, token):
            processes.check()
            advance(0, what)
            if time.monotonic() > due:
                log = next(child for child in processes.children if child.name == "coordinator").tail()
                raise ShoalError(f"no coordinator after {seconds(READY_S)}; its log:\n{log}", code="demo.time-out")
            time.sleep(0.05)
    return token


def is_ready(url: str, token: Path) -> bool:
    """Return whether the coordinator answers and its operator's token exists."""
    from shoal.cli.connection import connect

    if not token.is_file():
        return False
    try:
        with connect(url, token.read_text(encoding="utf-8").strip()) as api:
            api.get("/jobs")
    except (Unreachable, NotAllowed, Refused):
        return False
    return True


def send_tokens(api: CoordinatorApi, processes: ProcessGroup, plan: DemoPlan, nodes: list[DemoProcess]) -> None:
    """Give the clients their token."""
    token = api.post("/tokens", {"role": "node", "uses": plan.asked.clients})["token"]
    for node in nodes:
        assert node.process.stdin is not None
        try:
            node.process.stdin.write(token + "\n")
            node.process.stdin.flush()
        except BrokenPipeError:
            processes.check()  # names the process that has ended, with its last output
            raise


def peer_status(job: str, port: int) -> dict[str, Any]:
    """Return the status of a peer; empty while it does not answer."""
    from shoal.runtime.http.client import Link

    try:
        with Link(f"http://{HOST}:{port}", read_s=5.0) as link:
            found = link.json("GET", f"/p2p/{job}/status")
    except ShoalError:
        return {}
    return found if isinstance(found, dict) else {}


def check_done(job: dict[str, Any]) -> None:
    """Raise `ShoalError` for a job that did not end as done."""
    if job["state"] != "done":
        raise ShoalError(f"the job is {job['state']}: {job['state_why']}", code=f"job.{job['state']}")


def spec(plan: DemoPlan) -> dict[str, Any]:
    """Return the bundled job file with the changes of the options."""
    from shoal.cli.terminal.values import job_of

    asked = plan.asked
    changes = [f"schedule.min_nodes={asked.clients}", f"seed={asked.seed}"]
    if asked.failover:
        changes += [f"gossip.{key}={json.dumps(value)}" for key, value in GOSSIP.items()]
    if not asked.drift:
        changes += [f"rounds={asked.rounds}", f'options.split="{asked.split}"']
        changes += [f'held_out.options.device="{plan.device}"']
    with as_file(files("shoal.cli.demos") / ("drift_job.toml" if asked.drift else "job.toml")) as path:
        return job_of(path, changes)[1]
