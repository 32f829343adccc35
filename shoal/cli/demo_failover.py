"""`shoal demo --failover`: the coordinator is killed in mid-run, its nodes carry the job on, and it comes back.

a third of the rounds     as in the plain demo; then a pause, until the nodes know each other
kill -9                   nobody is told: the nodes miss the coordinator, agree on that, and go on as peers
ten local rounds          each on its own digits, with exchanges between any two
the coordinator again     the same folder, the same port; what the nodes hand back becomes a version
the rest of the rounds    as before
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from statistics import mean
from typing import TYPE_CHECKING, Any

from shoal.cli.demo_parts import HOST, RUN_S, Plan, await_coordinator, check_done, spec, start_coordinator
from shoal.cli.output import out
from shoal.cli.text import pairs, percent, seconds, size
from shoal.core.errors import ShoalError

if TYPE_CHECKING:
    from shoal.cli.api import Api
    from shoal.cli.processes import Household

AWAY_ROUNDS = 10
"""Local rounds that every node makes without the coordinator."""
PATIENCE_S = 180.0
"""For anything that the nodes should do by themselves."""
LOOK_S = 0.2

Status = dict[str, Any]


@dataclass
class Told:
    """What the command answers with. Accuracies are on the clients' own held-back digits."""

    before: float | None = None
    during: float | None = None
    after: float | None = None
    end: float | None = None
    killed_at_version: int = 0
    back_at_version: int = 0
    versions: int = 0
    switch_s: float = 0.0
    away_s: float = 0.0
    return_s: float = 0.0
    rounds_away: dict[str, int] = field(default_factory=dict)
    gossip_bytes: int = 0
    wall_s: float = 0.0


def failover(api: Api, house: Household, plan: Plan, started: float) -> None:
    """Let it all happen, and answer with what came of it."""
    told = Told()
    _begin(api, house, plan, told)
    _carry_on(house, plan, told)
    _come_back(api, house, plan, told)
    told.wall_s = time.monotonic() - started
    out.answer(asdict(told), pairs(_lines(told, plan)))


def _begin(api: Api, house: Household, plan: Plan, told: Told) -> None:
    """The first third of the rounds."""
    from shoal.cli.follow import follow

    wanted = plan.asked.rounds // 3 + 1
    job = api.post("/jobs", {"spec": spec(plan)})
    follow(
        api,
        job,
        timeout_s=RUN_S,
        check=lambda _job: house.check(),
        enough=lambda seen: seen["version"] >= wanted,
        what=f"made {wanted} versions",
    )
    api.post(f"/jobs/{plan.job}/pause", {"why": "until the nodes know each other"})
    others = plan.asked.clients - 1
    _watch(house, plan, "nodes get to know each other", lambda states: all(_alive(one) >= others for one in states))
    told.killed_at_version = api.get(f"/jobs/{plan.job}")["version"]
    api.post(f"/jobs/{plan.job}/resume", {"why": "they do"})  # and no round is waited for: they are short


def _carry_on(house: Household, plan: Plan, told: Told) -> None:
    """The death of the coordinator, and the time without it."""
    killed = time.monotonic()
    house.kill_one("coordinator")
    out.notice(f"[bold]killed[/]     the coordinator, with version {told.killed_at_version} made: kill -9")
    _watch(house, plan, "no coordinator", lambda states: all(one.get("state") == "away" for one in states))
    told.switch_s = time.monotonic() - killed
    out.notice(f"[bold]gossip[/]     after {seconds(told.switch_s)} all {plan.asked.clients} clients carry on as peers")
    states = _watch(
        house, plan, "without a coordinator", lambda states: all(one.get("round", 0) >= AWAY_ROUNDS for one in states)
    )
    told.away_s = time.monotonic() - killed
    told.rounds_away = {one["node"]: one["round"] for one in states}
    told.gossip_bytes = sum(peer["sent"] for one in states for peer in one["peers"].values())
    known = [one["metrics"]["eval/accuracy"] for one in states if "eval/accuracy" in one["metrics"]]
    told.during = mean(known) if known else None


def _come_back(api: Api, house: Household, plan: Plan, told: Told) -> None:
    """The coordinator again, the way back, and the rest of the rounds."""
    from shoal.cli.follow import follow

    started = time.monotonic()
    start_coordinator(house, plan)
    await_coordinator(house, plan, "the coordinator again")
    out.notice("[bold]back[/]       the coordinator runs again; the clients hand back what they have")

    def follow_until(enough: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        job = api.get(f"/jobs/{plan.job}")
        return follow(api, job, timeout_s=RUN_S, check=lambda _job: house.check(), enough=enough, what=what)

    reached = told.killed_at_version
    follow_until(lambda job: job["version"] > reached and job["mode"] == "server", "come back")
    told.return_s = time.monotonic() - started
    job = follow_until(lambda _job: False, "ended")
    check_done(job)
    versions = api.get(f"/jobs/{plan.job}/versions", points=0)["versions"]
    back = next(one for one in versions if one["why"].startswith("back at the server"))
    told.back_at_version, told.after = back["number"], back["metrics"].get("eval/accuracy")
    whole = next(one for one in versions if one["number"] == told.killed_at_version - 1)  # all have measured that one
    told.before = whole["metrics"].get("eval/accuracy")
    told.end, told.versions = job["metrics"].get("eval/accuracy"), job["version"]


def _alive(status: Status) -> int:
    return sum(peer["state"] == "alive" for peer in status.get("peers", {}).values())


def _watch(house: Household, plan: Plan, what: str, enough: Callable[[list[Status]], bool]) -> list[Status]:
    """Ask the clients how they do, until it is enough."""
    due = time.monotonic() + PATIENCE_S
    with out.progress(what, None) as advance:
        while True:
            house.check()
            states = [_status(plan, port) for port in plan.peer_ports]
            if enough(states):
                return states
            advance(0, "  ".join(_short(one) for one in states))
            if time.monotonic() > due:
                raise ShoalError(
                    f"{what}: the clients have not gone on within {seconds(PATIENCE_S)}", code="demo.time-out"
                )
            time.sleep(LOOK_S)


def _status(plan: Plan, port: int) -> Status:
    """What one client says of itself; nothing while it does not answer."""
    from shoal.runtime.http import Link

    try:
        with Link(f"http://{HOST}:{port}", read_s=5.0) as link:
            found = link.json("GET", f"/p2p/{plan.job}/status")
    except ShoalError:
        return {}
    return found if isinstance(found, dict) else {}


def _short(status: Status) -> str:
    made = f" {status['round']}" if status.get("state") == "away" else ""
    return f"{status.get('state', '–')}{made}"


def _lines(told: Told, plan: Plan) -> list[tuple[str, str]]:
    least, most = min(told.rounds_away.values()), max(told.rounds_away.values())
    made = str(least) if least == most else f"{least} to {most}"
    first, merged = told.killed_at_version - 1, told.back_at_version
    return [
        ("before", f"[bold]{percent(told.before)}[/]  version {first}; soon after, the coordinator was killed"),
        ("during", f"[bold]{percent(told.during)}[/]  {made} local rounds each, {size(told.gossip_bytes)} of gossip"),
        ("after", f"[bold]{percent(told.after)}[/]  version {merged}, merged from what the clients had"),
        ("end", f"[bold]{percent(told.end)}[/]  version {told.versions}"),
        ("", "[dim]on the clients' own held-back digits[/]"),
        ("switched", f"{seconds(told.switch_s)} after the kill, by {plan.asked.clients} clients that missed it"),
        ("returned", f"{seconds(told.return_s)} after the coordinator was started again"),
        ("wall time", f"{seconds(told.wall_s)} from start to end"),
    ]
