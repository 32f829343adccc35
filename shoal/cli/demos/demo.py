"""`shoal demo`: a coordinator, edge clients and a job on real data, all on this machine."""

from __future__ import annotations

import time
import webbrowser
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.demo_parts import (
    PORT,
    READY_S,
    RUN_S,
    Asked,
    Plan,
    check,
    check_done,
    free_port,
    free_ports,
    let_in,
    opened,
    spec,
    start,
)
from shoal.cli.jobs import node_table
from shoal.cli.options import Device, spread
from shoal.cli.output import out
from shoal.cli.text import number, pairs, percent, seconds, size
from shoal.core.errors import ShoalError

if TYPE_CHECKING:
    from shoal.cli.api import Api
    from shoal.cli.processes import Child, Household

BARS = " ▁▂▃▄▅▆▇█"


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

    With --failover the coordinator is killed after a third of the rounds; the clients miss it, carry on as peers, and
    hand the job back when it is there again.
    """
    from shoal.cli.processes import household

    started = time.monotonic()
    if asked.gossip and not asked.failover:
        without_server(asked, device or "auto")
        return
    check(asked, asked.clients)
    peer_ports = free_ports(asked.clients) if asked.failover else ()
    plan = Plan(asked, free_port(port), keep, device or "auto", peer_ports)
    if plan.port != port and port:
        out.notice(f"[yellow]port {port} is taken[/]: using {plan.port}")
    with household("shoal-demo-") as house:
        nodes = start(house, plan)
        with opened(house, plan) as api:
            out.notice(f"[bold]dashboard[/]  {plan.page}")
            if browser:
                webbrowser.open(plan.page)
            let_in(api, house, plan, nodes)
            if asked.failover:
                from shoal.cli.demo_failover import failover

                failover(api, house, plan, started)
            else:
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
    check(asked, count)
    demo_gossip.demo(demo_gossip.Company(asked.rounds, asked.split, asked.seed, device, free_ports(count)))


def train(api: Api, house: Household, plan: Plan, nodes: list[Child]) -> dict[str, Any]:
    """Submit the job, watch it to its end."""
    from shoal.cli.follow import follow

    job = api.post("/jobs", {"spec": spec(plan)})  # loads torch there, for the held-out digits, while the clients enrol
    due = time.monotonic() + READY_S

    def check(seen: dict[str, Any]) -> None:
        house.check()
        if time.monotonic() > due and not seen["nodes"] and seen["state"] == "waiting":
            text = f"no client has joined within {seconds(READY_S)}; the end of one's log:\n{nodes[0].tail()}"
            raise ShoalError(text, code="demo.time-out", hint="shoal doctor looks for what could be wrong")

    job = follow(api, job, timeout_s=RUN_S, check=check)
    check_done(job)
    return job


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
