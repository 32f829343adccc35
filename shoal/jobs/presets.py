"""Protocols by one name, so that a job can be run under several of them: `shoal simulate JOB.toml --compare A,B`.

A preset is laid over a job: what it says wins, and of the job's own fields those stay that the preset's algorithm and
schedule have too (learning rate, batch size, `min_nodes`, …). Seed and data are the job's, and so is how much each node
trains: as many mini-batches where `steps` and `checks` say it, else as many passes over its data. Rounds of E epochs
become rounds * E passes under a protocol without rounds, and P passes become P rounds of one epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from shoal.core.errors import InvalidJob
from shoal.plugins import algorithms, schedules, suggestion


@dataclass(frozen=True)
class Preset:
    """An algorithm, a schedule, and other tables of a job file (filters) that belong to them."""

    algorithm: Mapping[str, Any]
    schedule: Mapping[str, Any] = field(default_factory=lambda: {"name": "rounds"})
    more: Mapping[str, Any] = field(default_factory=dict)


def _on(name: str, **fields: Any) -> Mapping[str, Any]:
    """An algorithm whose nodes train on by themselves: how far is a matter of `_as_long`."""
    return {"name": name, **fields}


EIGHT_BITS: Mapping[str, Any] = {"filters": [{"name": "quantize", "bits": 8}]}

PRESETS = {
    "fedavg": Preset({"name": "fedavg"}, {"name": "rounds", "cohort": 0, "fraction": 1.0}),
    "fedavg-c03": Preset({"name": "fedavg"}, {"name": "rounds", "cohort": 0, "fraction": 0.3}),
    "fedsgd": Preset(
        {"name": "fedsgd", "epochs": 1.0, "batch_size": 0}, {"name": "rounds", "cohort": 0, "fraction": 1.0}
    ),
    "periodic": Preset(_on("periodic"), {"name": "periodic", "share": 1.0}),
    "periodic-8bit": Preset(_on("periodic"), {"name": "periodic", "share": 1.0}, EIGHT_BITS),
    "continuous": Preset(_on("periodic", steps=1), {"name": "periodic", "share": 1.0}),
    "kamp-fedavg-c03": Preset(_on("periodic"), {"name": "periodic", "share": 0.3}),
    "kamp-fedavg-c05": Preset(_on("periodic"), {"name": "periodic", "share": 0.5}),
    "kamp-fedavg-c07": Preset(_on("periodic"), {"name": "periodic", "share": 0.7}),
    "nosync": Preset(_on("periodic"), {"name": "periodic", "share": 0.0}),
    "dynamic": Preset(_on("dynamic"), {"name": "drift", "delta": "auto"}, EIGHT_BITS),
    "dynamic-fp32": Preset(_on("dynamic"), {"name": "drift", "delta": "auto"}, {"filters": []}),
    "fda": Preset(_on("fda"), {"name": "variance", "theta": "auto"}, EIGHT_BITS),
    "fda-opt": Preset(_on("fda", server="adam"), {"name": "variance", "theta": "auto"}, EIGHT_BITS),
}


def chosen(names: Iterable[str]) -> list[str]:
    """The presets of these names, each once. Raises `InvalidJob` for one that there is not, or for none."""
    found = list(dict.fromkeys(name.strip() for name in names if name.strip()))
    for name in found:
        if name not in PRESETS:
            raise InvalidJob(f"no preset is called {name!r}", code="preset.unknown", hint=suggestion(name, PRESETS))
    if not found:
        raise InvalidJob("no preset is named", code="preset.unknown", hint=f"known: {', '.join(PRESETS)}")
    return found


def under(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A job's values (of its file, or as JSON) under a preset; its name gets the preset's behind it."""
    preset, own = PRESETS[name], values.get("algorithm", {})
    tables = {
        "algorithm": _laid_over(preset.algorithm, own, algorithms()),
        "schedule": _laid_over(preset.schedule, values.get("schedule", {}), schedules()),
    }
    found = {**values, **preset.more, **tables, "name": f"{values['name']}-{name}"}
    return found | _as_long(values, own, tables["algorithm"])


def _as_long(values: Mapping[str, Any], own: Mapping[str, Any], table: dict[str, Any]) -> dict[str, Any]:
    """What makes nodes train as much as under the job's own protocol, where rounds and passes have to be exchanged."""
    known = algorithms()
    mine, theirs = known.get(own.get("name", "fedavg")), known[table["name"]]
    schedule = schedules().get(values.get("schedule", {}).get("name", "rounds"))
    if mine is None or schedule is None:
        return {}  # an unknown name is refused where the job is read
    if theirs.based and not mine.based:
        passes = float((values.get("rounds") or schedule.versions) * own.get("epochs", mine.epochs))
        return {"algorithm": {**table, "epochs": passes}, "rounds": 0}
    if mine.based and not theirs.based and own.get("epochs"):
        return {"algorithm": {**table, "epochs": 1.0}, "rounds": max(1, round(own["epochs"]))}
    return {}


def _laid_over(table: Mapping[str, Any], own: Mapping[str, Any], known: Mapping[str, type[Any]]) -> dict[str, Any]:
    names = {one.name: one for one in fields(known[table["name"]])}
    kept = {key: value for key, value in own.items() if key in names}
    if "steps" in table and "checks" in kept:  # nodes train on as many mini-batches, whatever a check is
        kept["checks"] = kept["checks"] * kept.get("steps", names["steps"].default) // table["steps"]
    return {**kept, **table}
