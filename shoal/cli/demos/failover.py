"""`shoal demo --failover`: the coordinator is killed during the job, its nodes continue as peers, and it comes back.

a third of the rounds     as in the plain demo; then a pause, until the nodes know each other
kill -9                   without notice: the nodes miss the coordinator, agree on that, and continue as peers
ten local rounds          each on its own digits, with exchanges between any two
the coordinator again     the same folder and port; the nodes hand their models back, which makes a version
the rest of the rounds    as before
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from statistics import mean
from typing import TYPE_CHECKING, Any

from shoal.cli.demos.plumbing import (
    RUN_S,
    DemoPlan,
    await_coordinator,
    check_done,
    peer_status,
    spec,
    start_coordinator,
)
from shoal.cli.terminal.output import out
from shoal.cli.terminal.text import pairs, percent, seconds, size
from shoal.core.errors import ShoalError

if TYPE_CHECKING:
    from shoal.cli.process.processes import ProcessGroup
    from shoal.client.api import CoordinatorApi

GOSSIP_ROUNDS = 10
"""Local rounds that every node makes without the coordinator."""
WAIT_S = 180.0
"""For anything that the nodes should do by themselves."""
POLL_S = 0.2

Status = dict[str, Any]


@dataclass
class FailoverResult:
    """The result of the command. Accuracies are on the clients' own test digits."""

    before: float | None = None
    during: float | None = None
    after: float | None = None
    end: float | None = None
    killed_at_version: int = 0
    back_at_version: int = 0
    versions: int = 0
    switch_s: float = 0.0
    gossip_s: float = 0.0
    return_s: float = 0.0
    gossip_rounds: dict[str, int] = field(default_factory=dict)
    gossip_bytes: int = 0
    wall_s: float = 0.0


def failover(api: CoordinatorApi, processes: ProcessGroup, plan: DemoPlan, started: float) -> None:
    """Run the scenario and print the result."""
    result = FailoverResult()
    _begin(api, processes, plan, result)
    _kill_coordinator(processes, plan, result)
    _restart_coordinator(api, processes, plan, result)
    result.wall_s = time.monotonic() - started
    out.answer(asdict(result), pairs(_lines(result, plan)))


def _begin(api: CoordinatorApi, processes: ProcessGroup, plan: DemoPlan, result: FailoverResult) -> None:
    """Run the first third of the rounds."""
    from shoal.cli.commands.follow import follow

    wanted = plan.asked.rounds // 3 + 1
    job = api.post("/jobs", {"spec": spec(plan)})
    follow(
        api,
        job,
        timeout_s=RUN_S,
        check=lambda _job: processes.check(),
        enough=lambda seen: seen["version"] >= wanted,
        what=f"made {wanted} versions",
    )
    api.post(f"/jobs/{plan.job}/pause", {"why": "until the nodes know each other"})
    others = plan.asked.clients - 1
    _wait_for_statuses(
        processes,
        plan,
        "nodes get to know each other",
        lambda states: all(_live_peers(one) >= others for one in states),
    )
    result.killed_at_version = api.get(f"/jobs/{plan.job}")["version"]
    api.post(f"/jobs/{plan.job}/resume", {"why": "they do"})  # and no round is waited for: they are short


def _kill_coordinator(processes: ProcessGroup, plan: DemoPlan, result: FailoverResult) -> None:
    """Kill the coordinator and follow its nodes."""
    killed = time.monotonic()
    processes.kill_one("coordinator")
    out.notice(f"[bold]killed[/]     the coordinator, with version {result.killed_at_version} made: kill -9")
    _wait_for_statuses(
        processes, plan, "no coordinator", lambda states: all(one.get("state") == "gossip" for one in states)
    )
    result.switch_s = time.monotonic() - killed
    out.notice(
        f"[bold]gossip[/]     after {seconds(result.switch_s)} all {plan.asked.clients} clients continue as peers"
    )
    states = _wait_for_statuses(
        processes,
        plan,
        "without a coordinator",
        lambda states: all(one.get("local_rounds", 0) >= GOSSIP_ROUNDS for one in states),
    )
    result.gossip_s = time.monotonic() - killed
    result.gossip_rounds = {one["node"]: one["local_rounds"] for one in states}
    result.gossip_bytes = sum(peer["sent"] for one in states for peer in one["peers"].values())
    known = [one["metrics"]["eval/accuracy"] for one in states if "eval/accuracy" in one["metrics"]]
    result.during = mean(known) if known else None


def _restart_coordinator(api: CoordinatorApi, processes: ProcessGroup, plan: DemoPlan, result: FailoverResult) -> None:
    """Restart the coordinator, and follow the hand-back and the remaining rounds."""
    from shoal.cli.commands.follow import follow

    started = time.monotonic()
    start_coordinator(processes, plan)
    await_coordinator(processes, plan, "the coordinator again")
    out.notice("[bold]back[/]       the coordinator runs again; the clients hand back what they have")

    def follow_until(enough: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        job = api.get(f"/jobs/{plan.job}")
        return follow(api, job, timeout_s=RUN_S, check=lambda _job: processes.check(), enough=enough, what=what)

    reached = result.killed_at_version
    follow_until(lambda job: job["version"] > reached and job["mode"] == "server", "come back")
    result.return_s = time.monotonic() - started
    job = follow_until(lambda _job: False, "ended")
    check_done(job)
    versions = api.get(f"/jobs/{plan.job}/versions", points=0)["versions"]
    back = next(one for one in versions if one["why"].startswith("back at the server"))
    result.back_at_version, result.after = back["number"], back["metrics"].get("eval/accuracy")
    whole = next(one for one in versions if one["number"] == result.killed_at_version - 1)  # all have measured that one
    result.before = whole["metrics"].get("eval/accuracy")
    result.end, result.versions = job["metrics"].get("eval/accuracy"), job["version"]


def _live_peers(status: Status) -> int:
    return sum(peer["state"] == "alive" for peer in status.get("peers", {}).values())


def _wait_for_statuses(
    processes: ProcessGroup, plan: DemoPlan, what: str, enough: Callable[[list[Status]], bool]
) -> list[Status]:
    """Poll the clients' statuses until `enough` is true."""
    due = time.monotonic() + WAIT_S
    with out.progress(what, None) as advance:
        while True:
            processes.check()
            states = [peer_status(plan.job, port) for port in plan.peer_ports]
            if enough(states):
                return states
            advance(0, "  ".join(_progress_text(one) for one in states))
            if time.monotonic() > due:
                raise ShoalError(f"{what}: the clients have not gone on within {seconds(WAIT_S)}", code="demo.time-out")
            time.sleep(POLL_S)


def _progress_text(status: Status) -> str:
    made = f" {status['local_rounds']}" if status.get("state") == "gossip" else ""
    return f"{status.get('state', '–')}{made}"


def _lines(result: FailoverResult, plan: DemoPlan) -> list[tuple[str, str]]:
    least, most = min(result.gossip_rounds.values()), max(result.gossip_rounds.values())
    made = str(least) if least == most else f"{least} to {most}"
    first, merged = result.killed_at_version - 1, result.back_at_version
    return [
        ("before", f"[bold]{percent(result.before)}[/]  version {first}; soon after, the coordinator was killed"),
        (
            "during",
            f"[bold]{percent(result.during)}[/]  {made} local rounds each, {size(result.gossip_bytes)} of gossip",
        ),
        ("after", f"[bold]{percent(result.after)}[/]  version {merged}, merged from what the clients had"),
        ("end", f"[bold]{percent(result.end)}[/]  version {result.versions}"),
        ("", "[dim]on the clients' own held-back digits[/]"),
        ("switched", f"{seconds(result.switch_s)} after the kill, by {plan.asked.clients} clients that missed it"),
        ("returned", f"{seconds(result.return_s)} after the coordinator was started again"),
        ("wall time", f"{seconds(result.wall_s)} from start to end"),
    ]
