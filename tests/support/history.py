"""The checker: compares what nodes were told with what the coordinator's database and files say in the end."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence

from tests.support.coordinator import Api
from tests.support.node import History, advance, body, initial, weight


def violations(api: Api, history: History, job: str, size: int, *, nodes: int, sums: str = "float64") -> list[str]:
    """Everything about a finished job that should not be. `nodes`: how many report in each round."""
    rows = api.rows("SELECT number, digest, reports, weight FROM versions WHERE job = ? ORDER BY number", job)
    found = list(history.wrongs)
    numbers = [row[0] for row in rows]
    if numbers != list(range(len(rows))):
        found.append(f"versions are not consecutive: {numbers}")
    counted = Counter((entry[0], tuple(entry[1])) for row in rows for entry in json.loads(row[2]))
    found += [f"report {which} is counted {times} times" for which, times in counted.items() if times > 1]
    for name, node, task, version, was_counted in history.acks:
        if name == job and was_counted and counted[node, task] != 1:
            found.append(f"acknowledged, not in any version: {node}'s report on {task} of version {version}")
    model = initial(size)
    for number, digest, text, total in rows:
        who = [entry[0] for entry in json.loads(text)]
        if number:
            if len(who) != nodes or len(set(who)) != nodes:
                found.append(f"version {number} was made by {who}, not by {nodes}")
            if total != sum(map(weight, who)):
                found.append(f"version {number} has weight {total}")
            model = advance(model, number - 1, who, sums)
        expected = hashlib.sha256(body(model)).hexdigest()
        if digest != expected:
            found.append(f"version {number} is {digest[:12]}, and the sum of its reports {expected[:12]}")
    return found


def final(api: Api, job: str) -> str:
    """The digest of a job's last model."""
    digest: str = api.rows("SELECT digest FROM versions WHERE job = ? ORDER BY number DESC LIMIT 1", job)[0][0]
    return digest


def check(api: Api, history: History, sizes: Mapping[str, int], sums: Mapping[str, str], nodes: int) -> None:
    """Assert that nothing is wrong with any of these jobs, and that all have made progress."""
    for job, size in sizes.items():
        wrong = violations(api, history, job, size, nodes=nodes, sums=sums.get(job, "float64"))
        assert not wrong, "\n".join(wrong)
        assert any(entry[0] == job and entry[-1] for entry in history.acks), f"no report of {job} was counted"


def predicted(size: int, rounds: int, who: Sequence[str], sums: str = "float64") -> str:
    """The digest of the last model of a run in which all of them reported in every round."""
    model = initial(size)
    for version in range(rounds):
        model = advance(model, version, who, sums)
    return hashlib.sha256(body(model)).hexdigest()
