"""`shoal demo`: a coordinator, edge clients and a job on real data, all on this machine."""

from __future__ import annotations

import time
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.doctor import is_free
from shoal.cli.jobs import node_table
from shoal.cli.options import Device, spread
from shoal.cli.output import out
from shoal.cli.text import number, pairs, percent, seconds, size
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
EXAMPLES, CLASSES = 1437, 10
"""What there is to divide."""

BARS = " ▁▂▃▄▅▆▇█"


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


@dataclass(frozen=True)
class Plan:
    """The same, and where it runs."""

    asked: Asked
    port: int
    keep: bool
    device: str = "auto"

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


@spread
def demo(
    *,
    asked: Asked,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="port of the dashboard; 0, or if taken: any free one")
    ] = PORT,
    browser: Annotated[bool, typer.Option("--open", help="open the dashboard in a browser")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="leave everything running afterwards, until Ctrl-C")] = False,
    device: Device = None,
) -> None:
    """Train on handwritten digits with a coordinator and four edge clients on this machine, live in the browser.

    Every client has its own digits, of its own mix (non-IID), and sends none of them. Everything is cleaned up.

    With --drift the clients learn from streams and speak only when their models have drifted apart; half-way the labels
    are permuted, and one sees synchronisations rise and fall again.

    With --gossip there is no coordinator, and no dashboard: five peers learn, and mix their models two by two.
    """
    from shoal.cli.processes import household

    started = time.monotonic()
    if asked.gossip:
        without_server(asked, device or "auto")
        return
    check_split(asked.split, asked.clients)
    plan = Plan(asked, free_port(port), keep, device or "auto")
    if plan.port != port and port:
        out.notice(f"[yellow]port {port} is taken[/]: using {plan.port}")
    with household("shoal-demo-") as house:
        nodes = start(house, plan)
        with opened(house, plan) as api:
            out.notice(f"[bold]dashboard[/]  {plan.page}")
            if browser:
                webbrowser.open(plan.page)
            job = train(api, house, plan, nodes)
            answer(api, plan, job, time.monotonic() - started)
            if keep:
                linger(house, plan)


def without_server(asked: Asked, device: str) -> None:
    """`--gossip`: one peer more than clients, as there is no coordinator."""
    from shoal.cli import demo_gossip

    if asked.drift:
        raise ShoalError("--drift needs a server, --gossip has none", code="usage.invalid", hint="choose one of them")
    count = asked.clients + 1
    check_split(asked.split, count)
    ports: list[int] = []
    while len(ports) < count:
        ports += [port for port in [free_port(0)] if port not in ports]
    demo_gossip.demo(demo_gossip.Company(asked.rounds, asked.split, asked.seed, device, tuple(ports)))


def check_split(split: str, clients: int) -> None:
    """Raise `InvalidJob` for a division that the clients would refuse, before any of them is started."""
    from shoal.learn.partition import divided

    divided(split, [example % CLASSES for example in range(EXAMPLES)], clients, 0)


def free_port(wanted: int) -> int:
    """The wanted port if nobody has it, else a free one.

    Not of those that the system gives to outgoing connections: until somebody listens there, it might give it away.
    """
    import random

    for port in (wanted, *random.sample(PORTS, len(PORTS))):
        if port and is_free(HOST, port):
            return port
    raise ShoalError(f"no port of {HOST} is free", code="port.in-use", hint="end what uses them")


def start(house: Household, plan: Plan) -> list[Child]:
    """Start all processes; the clients wait for their token, which the coordinator must make first."""
    house.start("coordinator", ["coordinator", "--host", HOST, "--port", str(plan.port), "--data", "data"])
    options = {**spec(plan)["options"], "parts": plan.asked.clients, "seed": plan.asked.seed}
    nodes = []
    for part in range(plan.asked.clients):
        arguments = ["join", plan.url, "--token", "-", "--learner", "shoal.learn.digits:learner"]
        arguments += [f"--option={key}={value}" for key, value in {"part": part, **options}.items()]
        arguments += ["--name", f"node-{part + 1}", "--state", f"node-{part + 1}", "--device", plan.device]
        nodes.append(house.start(f"node-{part + 1}", arguments, imports="edge_client shoal.learn.digits"))
    return nodes


@contextmanager
def opened(house: Household, plan: Plan) -> Iterator[Api]:
    """The coordinator, as soon as it answers. Raises `ShoalError` when it doesn't."""
    from shoal.cli.api import connect

    token = house.folder / "data" / "operator.token"
    due = time.monotonic() + READY_S
    with out.progress("starting", None) as advance:
        while not is_ready(plan.url, token):
            house.check()
            advance(0, f"a coordinator and {plan.asked.clients} clients")
            if time.monotonic() > due:
                log = house.children[0].tail()
                raise ShoalError(f"no coordinator after {seconds(READY_S)}; its log:\n{log}", code="demo.time-out")
            time.sleep(0.05)
    with connect(plan.url, token.read_text(encoding="utf-8").strip()) as api:
        yield api


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


def train(api: Api, house: Household, plan: Plan, nodes: list[Child]) -> dict[str, Any]:
    """Let the clients in, submit the job, watch it to its end."""
    from shoal.cli.follow import follow

    token = api.post("/tokens", {"role": "node", "uses": plan.asked.clients})["token"]
    for node in nodes:
        assert node.process.stdin is not None
        try:
            node.process.stdin.write(token + "\n")
            node.process.stdin.flush()
        except BrokenPipeError:
            house.check()  # says which process has ended, and what it said last
            raise
    job = api.post("/jobs", {"spec": spec(plan)})  # loads torch there, for the held-out digits, while the clients enrol
    due = time.monotonic() + READY_S

    def check(seen: dict[str, Any]) -> None:
        house.check()
        if time.monotonic() > due and not seen["nodes"] and seen["state"] == "waiting":
            text = f"no client has joined within {seconds(READY_S)}; the end of one's log:\n{nodes[0].tail()}"
            raise ShoalError(text, code="demo.time-out", hint="shoal doctor looks for what could be wrong")

    job = follow(api, job, timeout_s=RUN_S, check=check)
    if job["state"] != "done":
        raise ShoalError(f"the job is {job['state']}: {job['state_why']}", code=f"job.{job['state']}")
    return job


def spec(plan: Plan) -> dict[str, Any]:
    """The job file that comes with shoal, changed as asked for."""
    from shoal.cli.values import job_of

    asked = plan.asked
    changes = [f"schedule.min_nodes={asked.clients}", f"seed={asked.seed}"]
    if not asked.drift:
        changes += [f"rounds={asked.rounds}", f'options.split="{asked.split}"']
    with as_file(files("shoal.cli") / ("demo_drift_job.toml" if asked.drift else "demo_job.toml")) as path:
        return job_of(path, changes)[1]


def answer(api: Api, plan: Plan, job: dict[str, Any], took_s: float) -> None:
    """What came of it."""
    nodes = api.get(f"/jobs/{plan.job}/nodes")["nodes"]
    versions = api.get(f"/jobs/{plan.job}/versions", points=0)["versions"]
    own, held_out = job["metrics"].get("eval/accuracy"), job["metrics"].get("held_out/accuracy")
    training_s = versions[-1]["elapsed_s"] if versions else 0.0
    data = {
        "accuracy": own,
        "held_out_accuracy": held_out,
        "loss": job["metrics"].get("eval/loss"),
        "rounds": job["version"],
        "nodes": len(nodes),
        "up_bytes": job["up_bytes"],
        "down_bytes": job["down_bytes"],
        "training_s": training_s,
        "wall_s": took_s,
        "parameters": job["model"]["parameters"] if job["model"] else None,
    }
    told = [
        ("accuracy", f"[bold]{percent(held_out)}[/]  on digits that no client has"),
        ("", f"[bold]{percent(own)}[/]  on the clients' own held-back digits (loss {number(data['loss'], 3)})"),
        ("rounds", f"{job['version']} with {len(nodes)} clients, in {seconds(training_s)}"),
        ("bytes", f"{size(job['up_bytes'])} up, {size(job['down_bytes'])} down, all counted on the wire"),
        ("model", f"{data['parameters']:,} parameters, {size(job['model']['bytes'])}"),
        ("wall time", seconds(took_s) + " from start to end"),
    ]
    if plan.asked.drift:
        data["synchronisations"] = per_part(versions, spec(plan)["algorithm"]["checks"])
        told[:3] = [
            (
                "accuracy",
                f"[bold]{percent(own)}[/]  on the clients' own held-back digits (loss {number(data['loss'], 3)})",
            ),
            ("synchronised", f"{job['version']} times with {len(nodes)} clients, in {seconds(training_s)}"),
            ("instead of", f"{size(often(plan, job, len(nodes)))} for the models alone, averaged at every check"),
            ("over the data", f"{bars(data['synchronisations'])}  [dim]labels were permuted half-way[/]"),
        ]
    rows = pairs(told)
    out.answer(data, node_table(nodes), rows)


def often(plan: Plan, job: dict[str, Any], nodes: int) -> int:
    """Bytes of the models, both ways, if all were averaged at every check."""
    return int(spec(plan)["algorithm"]["checks"] * nodes * 2 * job["model"]["bytes"])


def per_part(versions: list[dict[str, Any]], checks: int, parts: int = 12) -> list[int]:
    """How many versions were made in each part of the streams, which are `checks` long.

    The reports of which a version is made are on the one before it, and say where their nodes were.
    """
    counts = [0] * parts
    for before in versions[:-1]:
        made_at = before["metrics"].get("train/checks", 0.0)
        counts[min(int(made_at / checks * parts), parts - 1)] += 1
    return counts


def bars(counts: list[int]) -> str:
    """A row of bars."""
    most = max([1, *counts])
    return "".join(BARS[-(-count * (len(BARS) - 1) // most)] for count in counts)


def linger(house: Household, plan: Plan) -> None:
    """Stay until Ctrl-C."""
    secret = house.folder / "data" / "operator.token"
    try:
        out.notice(f"still running: {plan.page}  [dim](Ctrl-C ends it; operator token: {secret})[/]")
        while True:
            house.check()
            time.sleep(0.5)
    except KeyboardInterrupt:
        out.notice("stopping")
