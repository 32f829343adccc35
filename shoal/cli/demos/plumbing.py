"""What every demo is made of: processes on this machine, a job that comes with shoal, digits."""

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

from shoal.cli.doctor import is_free
from shoal.cli.output import out
from shoal.cli.text import seconds
from shoal.core.errors import NotAllowed, Refused, ShoalError, Unreachable

if TYPE_CHECKING:
    from shoal.cli.api import Api
    from shoal.cli.processes import Child, Household

HOST = "127.0.0.1"
PORT = 8080
PORTS = range(20_000, 32_768)
READY_S = 60.0
RUN_S = 1800.0
JOB, DRIFT_JOB = "digits", "digits-drift"
GOSSIP = {"allowed": True, "ttl_s": 3.0, "grace_s": 2.0, "dwell_s": 2.0, "settle_s": 5.0, "period_s": 0.5}
"""With --failover: all in less time than a job in earnest would allow."""
EXAMPLES, CLASSES = 1437, 10
"""What there is to divide."""
NEEDED = ("cryptography", "fastapi", "sqlalchemy", "torch")
"""Packages of the extra demo, one of each part."""


@dataclass(frozen=True)
class Asked:
    """What is learned, by whom: options of the command."""

    rounds: Annotated[int, typer.Option(min=1, help="rounds of federated averaging")] = 30
    clients: Annotated[
        int, typer.Option(min=1, max=64, help="edge clients, each a process with its own data; with --gossip one more")
    ] = 4
    split: Annotated[
        str, typer.Option(help="how the digits are divided: iid, dirichlet:ALPHA, shards:N; with --drift always iid")
    ] = "dirichlet:0.5"
    seed: Annotated[int, typer.Option(min=0, help="of the division, the model and the batches")] = 0
    drift: Annotated[
        bool, typer.Option("--drift", help="dynamic averaging on streams whose labels change half-way")
    ] = False
    gossip: Annotated[bool, typer.Option("--gossip", help="no coordinator: peers that mix their models")] = False
    failover: Annotated[
        bool, typer.Option("--failover", help="kill the coordinator in mid-run, carry on without it, bring it back")
    ] = False


@dataclass(frozen=True)
class Plan:
    """The same, and where it runs."""

    asked: Asked
    port: int
    keep: bool
    device: str = "auto"
    peer_ports: tuple[int, ...] = ()

    @property
    def url(self) -> str:
        """Where the coordinator will be."""
        return f"http://{HOST}:{self.port}"

    @property
    def job(self) -> str:
        """The job's name."""
        return DRIFT_JOB if self.asked.drift else JOB

    @property
    def page(self) -> str:
        """The job's page on the dashboard."""
        return f"{self.url}/jobs/{self.job}"


def check(asked: Asked, parts: int) -> None:
    """Raise `ShoalError` for what the processes would refuse, before any of them is started."""
    missing = [name for name in NEEDED if not find_spec(name)]
    if missing:
        text, hint = f"the demo needs {' and '.join(missing)}, not installed", "pip install 'shoal[demo]'"
        raise ShoalError(text, code="usage.extra", hint=hint)
    from shoal.learn.partition import divided

    divided(asked.split, [example % CLASSES for example in range(EXAMPLES)], parts, 0)
    if asked.failover and (asked.drift or asked.gossip or asked.clients < 2 or asked.rounds < 3):
        hint = "leave out --drift and --gossip, and ask for at least 2 clients and 3 rounds"
        raise ShoalError("there would be nothing to see of a failover", code="usage.invalid", hint=hint)


def free_port(wanted: int) -> int:
    """The wanted port if nobody has it, else a free one.

    Not of those that the system gives to outgoing connections: until somebody listens there, it might give it away.
    """
    import random

    for port in (wanted, *random.sample(PORTS, len(PORTS))):
        if port and is_free(HOST, port):
            return port
    raise ShoalError(f"no port of {HOST} is free", code="port.in-use", hint="end what uses them")


def free_ports(count: int) -> tuple[int, ...]:
    """So many ports that nobody has, no two the same."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port(0))
    return tuple(sorted(ports))


def start(house: Household, plan: Plan) -> list[Child]:
    """Start all processes; the clients wait for their token, which the coordinator must make first."""
    start_coordinator(house, plan)
    options = {**spec(plan)["options"], "parts": plan.asked.clients, "seed": plan.asked.seed}
    nodes = []
    for part in range(plan.asked.clients):
        arguments = ["join", plan.url, "--token", "-", "--learner", "shoal.learn.digits:learner"]
        arguments += [f"--option={key}={value}" for key, value in {"part": part, **options}.items()]
        arguments += ["--name", f"node-{part + 1}", "--state", f"node-{part + 1}", "--device", plan.device]
        arguments += [f"--peer-listen={HOST}:{plan.peer_ports[part]}"] if plan.asked.failover else []
        nodes.append(house.start(f"node-{part + 1}", arguments, imports="shoal_edge_client shoal.learn.digits"))
    return nodes


def start_coordinator(house: Household, plan: Plan) -> None:
    """Start it, or start it again: the folder is the same."""
    house.start("coordinator", ["coordinator", "--host", HOST, "--port", str(plan.port), "--data", "data"])


@contextmanager
def opened(house: Household, plan: Plan) -> Iterator[Api]:
    """The coordinator, as soon as it answers. Raises `ShoalError` when it doesn't."""
    from shoal.cli.api import connect

    token = await_coordinator(house, plan, f"a coordinator and {plan.asked.clients} clients")
    with connect(plan.url, token.read_text(encoding="utf-8").strip()) as api:
        yield api


def await_coordinator(house: Household, plan: Plan, what: str) -> Path:
    """Wait until it answers; the file of its operator's token. Raises `ShoalError` when it doesn't."""
    token = house.folder / "data" / "operator.token"
    due = time.monotonic() + READY_S
    with out.progress("starting", None) as advance:
        while not is_ready(plan.url, token):
            house.check()
            advance(0, what)
            if time.monotonic() > due:
                log = next(child for child in house.children if child.name == "coordinator").tail()
                raise ShoalError(f"no coordinator after {seconds(READY_S)}; its log:\n{log}", code="demo.time-out")
            time.sleep(0.05)
    return token


def is_ready(url: str, token: Path) -> bool:
    """Whether the coordinator answers, and its operator's token is there."""
    from shoal.cli.api import connect

    if not token.is_file():
        return False
    try:
        with connect(url, token.read_text(encoding="utf-8").strip()) as api:
            api.get("/jobs")
    except (Unreachable, NotAllowed, Refused):
        return False
    return True


def let_in(api: Api, house: Household, plan: Plan, nodes: list[Child]) -> None:
    """Give the clients the token that they wait for."""
    token = api.post("/tokens", {"role": "node", "uses": plan.asked.clients})["token"]
    for node in nodes:
        assert node.process.stdin is not None
        try:
            node.process.stdin.write(token + "\n")
            node.process.stdin.flush()
        except BrokenPipeError:
            house.check()  # says which process has ended, and what it said last
            raise


def check_done(job: dict[str, Any]) -> None:
    """Raise `ShoalError` for a job that has ended before its time."""
    if job["state"] != "done":
        raise ShoalError(f"the job is {job['state']}: {job['state_why']}", code=f"job.{job['state']}")


def spec(plan: Plan) -> dict[str, Any]:
    """The job file that comes with shoal, changed as asked for."""
    from shoal.cli.values import job_of

    asked = plan.asked
    changes = [f"schedule.min_nodes={asked.clients}", f"seed={asked.seed}"]
    if asked.failover:
        changes += [f"gossip.{key}={json.dumps(value)}" for key, value in GOSSIP.items()]
    if not asked.drift:
        changes += [f"rounds={asked.rounds}", f'options.split="{asked.split}"']
    with as_file(files("shoal.cli") / ("demo_drift_job.toml" if asked.drift else "demo_job.toml")) as path:
        return job_of(path, changes)[1]
