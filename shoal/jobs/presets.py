"""Presets: an algorithm and a schedule that belong together, by one name.

`preset = "dynamic"` in a job file fills in the tables of the preset; the file's own tables override single fields
(`with_preset`). A schedule that is left out follows from the algorithm (`complete`). `shoal run JOB.toml --compare A,B`
runs one job under several presets (`apply_preset`): there the preset's fields override those of the job, and each node
trains for as many mini-batches or passes as before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from shoal.core.errors import InvalidJob
from shoal.jobs.job_tables import as_tables
from shoal.plugins import algorithms, schedules, suggestion
from shoal.validation.config_errors import TEXT_CHARS_MAX, ConfigError


@dataclass(frozen=True)
class Preset:
    """The tables of a job file that belong together: algorithm, schedule, and others such as filters."""

    algorithm: Mapping[str, Any]
    schedule: Mapping[str, Any] = field(default_factory=lambda: {"name": "rounds"})
    more: Mapping[str, Any] = field(default_factory=dict)


def _on(name: str, **fields: Any) -> Mapping[str, Any]:
    """Return the table of an algorithm whose nodes train continuously."""
    return {"name": name, **fields}


EIGHT_BITS: Mapping[str, Any] = {"filters": [{"name": "quantize", "bits": 8}]}

PRESETS = {
    "fedavg": Preset({"name": "fedavg"}, {"name": "rounds", "cohort": 0, "fraction": 1.0}),
    "fedavg-c03": Preset({"name": "fedavg"}, {"name": "rounds", "cohort": 0, "fraction": 0.3}),
    "fedsgd": Preset(
        {"name": "fedsgd", "epochs": 1.0, "batch_size": 0}, {"name": "rounds", "cohort": 0, "fraction": 1.0}
    ),
    "periodic": Preset(_on("periodic"), {"name": "periodic", "fraction": 1.0}),
    "periodic-8bit": Preset(_on("periodic"), {"name": "periodic", "fraction": 1.0}, EIGHT_BITS),
    "continuous": Preset(_on("periodic", steps=1), {"name": "periodic", "fraction": 1.0}),
    "kamp-fedavg-c03": Preset(_on("periodic"), {"name": "periodic", "fraction": 0.3}),
    "kamp-fedavg-c05": Preset(_on("periodic"), {"name": "periodic", "fraction": 0.5}),
    "kamp-fedavg-c07": Preset(_on("periodic"), {"name": "periodic", "fraction": 0.7}),
    "nosync": Preset(_on("periodic"), {"name": "periodic", "fraction": 0.0}),
    "dynamic": Preset(_on("dynamic"), {"name": "divergence", "delta": "auto"}, EIGHT_BITS),
    "dynamic-fp32": Preset(_on("dynamic"), {"name": "divergence", "delta": "auto"}, {"filters": []}),
    "fedasync": Preset({"name": "fedasync"}, {"name": "buffer"}),
    "fedbuff": Preset({"name": "fedbuff"}, {"name": "buffer", "size": 10}),
    "fda": Preset(_on("fda"), {"name": "variance", "theta": "auto"}, EIGHT_BITS),
    "fda-opt": Preset(_on("fda", server="adam"), {"name": "variance", "theta": "auto"}, EIGHT_BITS),
    "boosted-trees": Preset({"name": "boosted_trees"}),
    "bagged-trees": Preset({"name": "bagged_trees"}),
    "cyclic-trees": Preset({"name": "bagged_trees"}, {"name": "rounds", "cohort": 1, "quorum": 1, "over_select": 0}),
}


def complete(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's values with names written as tables, and with what they leave out: the tables of the preset, the
    algorithm's schedule, the usual selection. Applying this twice changes nothing."""
    values = with_preset(as_tables(values))
    schedule, selection = values.get("schedule", {}), values.get("selection", {})
    if isinstance(schedule, Mapping) and "name" not in schedule:
        values["schedule"] = {**default_schedule(values.get("algorithm")), **schedule}
    if isinstance(selection, Mapping) and "name" not in selection:
        values["selection"] = {"name": "uniform", **selection}
    return values


def default_schedule(algorithm: Any) -> dict[str, Any]:
    """Return the schedule's table for an algorithm's table: that of its preset, or else of its first family of
    schedules."""
    name = algorithm.get("name") if isinstance(algorithm, Mapping) else None
    kind = algorithms().get(name) if isinstance(name, str) else None
    if kind is None or kind.schedules[0] == "synchronous":
        return {"name": "rounds"}
    if kind.name in PRESETS:
        return dict(PRESETS[kind.name].schedule)
    return {"name": next((key for key, one in schedules().items() if one.family == kind.schedules[0]), "rounds")}


def with_preset(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's values with the tables of its preset filled in; the job's own fields win.

    Values without a known preset return unchanged. Applying this twice changes nothing.
    """
    preset = _preset_of(values)
    if preset is None:
        return dict(values)
    filled = {"algorithm": preset.algorithm, "schedule": preset.schedule}
    for what, table in filled.items():
        own = values.get(what, {})
        filled[what] = {**table, **own} if isinstance(own, Mapping) else own
    return {**preset.more, **values, **filled}


def preset_errors(values: Mapping[str, Any]) -> Iterator[ConfigError]:
    """Yield an unknown preset, and tables that name another class than the preset."""
    name, preset = values.get("preset"), _preset_of(values)
    if preset is None:
        if name and isinstance(name, str):
            yield ConfigError(("preset",), f"no preset is called {name!r}"[:TEXT_CHARS_MAX], suggestion(name, PRESETS))
        return
    for what, table in (("algorithm", preset.algorithm), ("schedule", preset.schedule)):
        own = values.get(what)
        other = own.get("name", table["name"]) if isinstance(own, Mapping) else table["name"]
        if other != table["name"]:
            text = f"preset {name} uses the {what} {table['name']}, but [{what}] names {other!r}"[:TEXT_CHARS_MAX]
            yield ConfigError((what, "name"), text, f"leave out the preset, or the name in [{what}]", "job.preset")


def _preset_of(values: Mapping[str, Any]) -> Preset | None:
    name = values.get("preset")
    return PRESETS.get(name) if isinstance(name, str) else None


def parse_presets(names: Iterable[str]) -> list[str]:
    """Return the names of presets without duplicates. Raises `InvalidJob` for an unknown name, or for none."""
    found = list(dict.fromkeys(name.strip() for name in names if name.strip()))
    for name in found:
        if name not in PRESETS:
            raise InvalidJob(f"no preset is called {name!r}", code="preset.unknown", hint=suggestion(name, PRESETS))
    if not found:
        raise InvalidJob("no preset is named", code="preset.unknown", hint=f"known: {', '.join(PRESETS)}")
    return found


def apply_preset(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a job's values under a preset, named JOB-PRESET."""
    kept = values.keys() - {"preset"} | {"algorithm", "schedule"}  # filters of the job's own preset go with it
    values = {key: value for key, value in complete(values).items() if key in kept}
    preset, own = PRESETS[name], values.get("algorithm", {})
    tables = {
        "algorithm": _laid_over(preset.algorithm, own, algorithms()),
        "schedule": _laid_over(preset.schedule, values.get("schedule", {}), schedules()),
    }
    found = {**values, **preset.more, **tables, "name": f"{values['name']}-{name}"}
    return found | _as_long(values, own, tables["algorithm"])


def _as_long(values: Mapping[str, Any], own: Mapping[str, Any], table: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that keep the amount of training when rounds become passes or passes become rounds."""
    known = algorithms()
    mine, theirs = known.get(own.get("name", "fedavg")), known[table["name"]]
    schedule = schedules().get(values.get("schedule", {}).get("name", "rounds"))
    if mine is None or schedule is None:
        return {}  # an unknown name is refused where the job is read
    if theirs.continual and not mine.continual:
        passes = float((values.get("rounds") or schedule.versions) * own.get("epochs", mine.epochs))
        return {"algorithm": {**table, "epochs": passes}, "rounds": 0}
    if mine.continual and not theirs.continual and own.get("epochs"):
        return {"algorithm": {**table, "epochs": 1.0}, "rounds": max(1, round(own["epochs"]))}
    return {}


def _laid_over(table: Mapping[str, Any], own: Mapping[str, Any], known: Mapping[str, type[Any]]) -> dict[str, Any]:
    names = {one.name: one for one in fields(known[table["name"]])}
    kept = {key: value for key, value in own.items() if key in names}
    return {**kept, **table}
