"""Runs recorded by hand: jobs with versions and reports of as many clients and rounds as a page should bear."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import insert

from shoal.core.protocol.message import Metrics
from shoal_coordinator.storage.tables import reports, versions
from tests.support.coordinator import Inside

T0 = 1_790_000_000.0
ROUND_S = 4.0
Loss = Callable[[int, int], float]


def falling(client: int, number: int) -> float:
    """A loss that falls, for each client to a place of its own."""
    return (1.0 + client % 7 / 10) * math.exp(-number / 40) + 0.05 * math.sin(client * 7.3 + number * 0.9)


def diverging(client: int, number: int) -> float:
    """The same, but client 1 diverges for good at round 12."""
    return math.nan if client == 1 and number >= 12 else falling(client, number)


def plain(value: float) -> float | str:
    return value if math.isfinite(value) else "NaN"


def record(
    running: Inside,
    job: str,
    clients: int,
    rounds: int,
    loss: Loss = falling,
    names: Sequence[str] = (),
    measured: Metrics | None = None,
) -> None:
    """Write the rounds of a job that was begun down, as its coordinator would have.

    `measured`: metrics of each version and report.
    """
    rows = [_version(job, number, clients, loss) for number in range(rounds + 1)]
    made = ((client, number) for number in range(1, rounds + 1) for client in range(clients))
    told = [_report(job, client, number, loss) for client, number in made]
    for row in (*rows, *told):
        row["metrics"] |= measured or {}
    for client, name in enumerate(names):
        for row in told[client::clients]:
            row["node"] = name

    async def put() -> None:
        await running.coordinator.database.write(lambda c: _put(c, rows, told))

    running.call(put())


def _put(connection: Any, rows: list[dict[str, Any]], told: list[dict[str, Any]]) -> None:
    connection.execute(insert(versions), rows)
    for place in range(0, len(told), 5000):
        connection.execute(insert(reports), told[place : place + 5000])


def _version(job: str, number: int, clients: int, loss: Loss) -> dict[str, Any]:
    mean = sum(loss(client, number) for client in range(clients)) / clients
    return {
        "job": job,
        "number": number,
        "seq": 10_000_000 + number,
        "digest": f"{number:064x}",
        "nbytes": 40_000,
        "why": f"{clients} of {clients} reports",
        "opened_s": ROUND_S * (number - 1),
        "closed_s": ROUND_S * number,
        "closed_at": T0 + ROUND_S * number,
        "weight": float(clients),
        "asked": clients,
        "reports": [],
        "metrics": {"train/loss": plain(mean), "eval/accuracy": 1 - 0.9 * math.exp(-number / 30)},
        "numbers": {},
    }


def _report(job: str, client: int, number: int, loss: Loss) -> dict[str, Any]:
    train = 1.5 + client % 5 / 4
    phases = {"wait_s": 0.05, "download_s": 0.1, "train_s": train, "upload_s": 0.2 + client % 3 / 10, "fold_s": 0.02}
    seconds = sum(phases.values())
    return {
        "job": job,
        "seq": 20_000_000 + number * 10_000 + client,
        "node": f"client-{client}",
        "task": f"1.{number * 10_000 + client}",
        "kind": "train",
        "version": number - 1,
        "round": number,
        "staleness": 0,
        "weight": 1.0,
        "norm": 3 / math.sqrt(number),
        "metrics": {"train/loss": plain(loss(client, number)), "eval/accuracy": 0.5},
        "now": ROUND_S * (number - 1) + seconds,
        "at": T0 + ROUND_S * number,
        "seconds": seconds,
        **phases,
    }
