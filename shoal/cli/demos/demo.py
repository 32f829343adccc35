"""`shoal demo`: a coordinator, edge clients and a job on real data, on this machine."""

from __future__ import annotations

import time
import webbrowser
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.commands.jobs import node_table
from shoal.cli.demos.afterwards import show_next_commands, stays, wait_for_interrupt
from shoal.cli.demos.plumbing import (
    PORT,
    READY_S,
    RUN_S,
    DemoOptions,
    DemoPlan,
    check,
    check_done,
    connected,
    device_of,
    free_port,
    free_ports,
    send_tokens,
    spec,
    start,
)
from shoal.cli.terminal.options import spread
from shoal.cli.terminal.output import out
from shoal.cli.terminal.text import number, pairs, percent, seconds, size
from shoal.core.errors import ShoalError

if TYPE_CHECKING:
    from shoal.cli.process.processes import DemoProcess, ProcessGroup
    from shoal.client.api import CoordinatorApi

BARS = " ▁▂▃▄▅▆▇█"


@spread
def demo(
    *,
    asked: DemoOptions,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="port of the dashboard; 0, or if in use: any free one")
    ] = PORT,
    browser: Annotated[bool, typer.Option("--open", help="open the dashboard in a browser")] = False,
    keep: Annotated[
        bool | None,
        typer.Option("--keep/--exit", help="afterwards leave everything running until Ctrl-C, or end; see above"),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="cpu, cuda, cuda:I or mps (default: cpu, faster for a small model)", show_default=False),
    ] = None,
) -> None:
    """Train on handwritten digits with a coordinator, four edge clients and the dashboard on this machine.

    Each client has its own digits in its own mix (non-IID) and sends none of them. When the job has ended, the
    dashboard stays until Ctrl-C. With --exit, with --json or without a terminal the demo ends at once. Then all its
    files are removed.

    With --drift the clients learn from streams and report only when their models have moved too far from the last
    common model. Half-way the labels are permuted: the number of synchronizations rises, and falls again.

    With --gossip there is neither coordinator nor dashboard: five peers train and average their models in pairs.

    With --failover the coordinator is killed after a third of the rounds; the clients miss it, continue as peers, and
    hand the job back when it is there again.
    """
    from shoal.cli.process.processes import process_group

    started = time.monotonic()
    if asked.gossip and not asked.failover:
        without_server(asked, device_of(device))
        return
    check(asked, asked.clients)
    peer_ports = free_ports(asked.clients) if asked.failover else ()
    plan = DemoPlan(asked, free_port(port), device_of(device), peer_ports)
    if plan.port != port and port:
        out.notice(f"[yellow]port {port} is taken[/]: using {plan.port}")
    with process_group("shoal-demo-") as processes:
        nodes = start(processes, plan)
        with connected(processes, plan) as api:
            out.notice(f"[bold]dashboard[/]  {plan.page}")
            if browser:
                webbrowser.open(plan.page)
            send_tokens(api, processes, plan, nodes)
            if asked.failover:
                from shoal.cli.demos.failover import failover

                failover(api, processes, plan, started)
            else:
                job = train(api, processes, plan, nodes)
                answer(api, plan, job, time.monotonic() - started)
            show_next_commands()
            if stays(keep):
                wait_for_interrupt(processes, plan)


def without_server(asked: DemoOptions, device: str) -> None:
    """Run `--gossip`, with one peer more than clients because there is no coordinator."""
    from shoal.cli.demos import gossip

    if asked.drift:
        raise ShoalError("--drift needs a server, --gossip has none", code="usage.invalid", hint="choose one of them")
    count = asked.clients + 1
    check(asked, count)
    gossip.demo(gossip.DemoPeers(asked.rounds, asked.split, asked.seed, device, free_ports(count)))
    show_next_commands()


def train(api: CoordinatorApi, processes: ProcessGroup, plan: DemoPlan, nodes: list[DemoProcess]) -> dict[str, Any]:
    """Submit the job and follow it until it ends."""
    from shoal.cli.commands.follow import follow

    job = api.post("/jobs", {"spec": spec(plan)})  # loads torch there, for the held-out digits, while the clients enrol
    due = time.monotonic() + READY_S

    def check(seen: dict[str, Any]) -> None:
        processes.check()
        if time.monotonic() > due and not seen["nodes"] and seen["state"] == "waiting":
            text = f"no client has joined within {seconds(READY_S)}; the end of one's log:\n{nodes[0].tail()}"
            raise ShoalError(text, code="demo.time-out", hint="shoal doctor looks for what could be wrong")

    job = follow(api, job, timeout_s=RUN_S, check=check)
    check_done(job)
    return job


def answer(api: CoordinatorApi, plan: DemoPlan, job: dict[str, Any], took_s: float) -> None:
    """Print the result."""
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
    summary = [
        ("accuracy", f"[bold]{percent(held_out)}[/]  on digits that no client has"),
        ("", f"[bold]{percent(own)}[/]  on the clients' own held-back digits (loss {number(data['loss'], 3)})"),
        ("rounds", f"{job['version']} with {len(nodes)} clients, in {seconds(training_s)}"),
        ("bytes", f"{size(job['up_bytes'])} up, {size(job['down_bytes'])} down, all counted on the wire"),
        ("model", f"{data['parameters']:,} parameters, {size(job['model']['bytes'])}"),
        ("wall time", seconds(took_s) + " from start to end"),
    ]
    if plan.asked.drift:
        data["synchronizations"] = versions_per_part(versions, checks_of(plan))
        summary[:3] = [
            (
                "accuracy",
                f"[bold]{percent(own)}[/]  on the clients' own held-back digits (loss {number(data['loss'], 3)})",
            ),
            ("synchronized", f"{job['version']} times with {len(nodes)} clients, in {seconds(training_s)}"),
            (
                "instead of",
                f"{size(every_check_bytes(plan, job, len(nodes)))} for the models alone, averaged at every check",
            ),
            ("over the data", f"{bars(data['synchronizations'])}  [dim]labels were permuted half-way[/]"),
        ]
    rows = pairs(summary)
    out.answer(data, node_table(nodes), rows)


def checks_of(plan: DemoPlan) -> int:
    """Return the number of checks that each client makes."""
    algorithm = spec(plan)["algorithm"]
    return int(algorithm["local_steps"]) // int(algorithm["steps"])


def every_check_bytes(plan: DemoPlan, job: dict[str, Any], nodes: int) -> int:
    """Return the bytes of the models, both ways, if all were averaged at every check."""
    return int(checks_of(plan) * nodes * 2 * job["model"]["bytes"])


def versions_per_part(versions: list[dict[str, Any]], checks: int, parts: int = 12) -> list[int]:
    """Return the number of versions in each part of the streams, which are `checks` long.

    The reports of which a version is made are on the one before it, and say where their nodes were.
    """
    counts = [0] * parts
    for before in versions[:-1]:
        made_at = before["metrics"].get("train/checks", 0.0)
        counts[min(int(made_at / checks * parts), parts - 1)] += 1
    return counts


def bars(counts: list[int]) -> str:
    """Return a row of bars."""
    most = max([1, *counts])
    return "".join(BARS[-(-count * (len(BARS) - 1) // most)] for count in counts)
