"""Tables in the documentation that are made from the code: `python -m tests.docs.tables` writes them again.

A table stands between `<!-- table NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Callable, Collection
from dataclasses import MISSING, fields
from pathlib import Path
from textwrap import dedent
from typing import Any

from pydantic import BaseModel

from shoal.core.errors.ranges import type_texts
from shoal.jobs.job_tables import (
    EarlyStopTable,
    GossipConfig,
    HeldOutEvaluation,
    LrScheduleTable,
    StageTable,
    UpdateLimits,
)
from shoal.jobs.presets import PRESETS
from shoal.jobs.spec import JobSpec
from shoal.jobs.split_spec import SplitSpec
from shoal.plugins import algorithms, filters, mixings, schedules, selections
from shoal.trust.codes import REASONS
from shoal.trust.documents import KINDS, SIGNED_BY, RosterEntry
from shoal_coordinator.api.openapi import document
from shoal_coordinator.settings import Settings
from shoal_edge_client.settings import EdgeSettings

ROOT = Path(__file__).parents[2]
MARKED = re.compile(r"(<!-- table ([a-z_-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def described(kind: type[Any]) -> dict[str, str]:
    """The text below each field of a class, its bases' included."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("shoal"):
            body = ast.parse(dedent(inspect.getsource(base))).body[0]
            assert isinstance(body, ast.ClassDef)
            for line, below in zip(body.body, body.body[1:], strict=False):
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                    text = (
                        below.value.value
                        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
                        else ""
                    )
                    found[line.target.id] = " ".join(str(text).split())
    return found


def of_dataclass(kind: type[Any]) -> str:
    """Field, type, default and meaning of what an algorithm, schedule, filter or way of mixing is configured with."""
    texts, types = described(kind), type_texts(kind)
    rows = ["| field | type | default | |", "|---|---|---|---|"]
    for field in fields(kind):
        default = "" if field.default is MISSING else f"`{field.default!r}`"
        cells = [types[field.name], default, texts[field.name]]
        rows.append(" | ".join([f"| `{field.name}`", *(cell.replace("|", "\\|") for cell in cells)]) + " |")
    return "\n".join(rows) + "\n"


GOSSIP_ALONE = {"local_rounds", "convergence_tol", "final_exchanges_max", "min_peers", "probe_interval_s"}
"""Keys of `[gossip]` that apply only to jobs without a coordinator."""

GOSSIP_ALWAYS = {"mixing", "exchange_timeout_s", "loss_ratio_max", "bytes_per_hour"}


def of_gossip() -> dict[str, Callable[[], str]]:
    """The tables of `[gossip]`: after a failover, in both cases, without a coordinator."""
    failover = set(GossipConfig.model_fields) - GOSSIP_ALONE - GOSSIP_ALWAYS
    parts = {"gossip-failover": failover, "gossip": GOSSIP_ALWAYS, "gossip-alone": GOSSIP_ALONE}
    return {name: lambda keys=keys: of_model(GossipConfig, keys) for name, keys in parts.items()}


def of_model(kind: type[BaseModel], keys: Collection[str] = ()) -> str:
    """Key, default and meaning of a table of settings, or of those of its keys that are named."""
    rows = ["| key | default | |", "|---|---|---|"]
    for name, field in kind.model_fields.items():
        if keys and name not in keys:
            continue
        default = field.get_default(call_default_factory=True)
        named = default.get("name", "") if isinstance(default, dict) else default
        empty = named in ("", None) or isinstance(named, BaseModel)
        shown = "required" if field.is_required() else "" if empty else f"`{named!s}`"
        rows.append(f"| `{name}` | {shown} | {field.description or ''} |")
    return "\n".join(rows) + "\n"


def of_presets() -> str:
    """Every preset, and what it sets."""
    rows = ["| preset | algorithm | schedule | |", "|---|---|---|---|"]
    for name, preset in PRESETS.items():
        tables = (dict(preset.algorithm), dict(preset.schedule))
        named = [
            ", ".join([f"`{one['name']}`", *(f"{key} {one[key]}" for key in one if key != "name")]) for one in tables
        ]
        rows.append(f"| `{name}` | {' | '.join(named)} | {', '.join(preset.more)} |")
    return "\n".join(rows) + "\n"


def of_routes() -> str:
    """Every route, with what it does in a line."""
    paths = json.loads(document())["paths"]
    rows = ["| route | |", "|---|---|"]
    for path in sorted(paths):
        for method, operation in sorted(paths[path].items()):
            said = " ".join(operation.get("description", operation["summary"]).split())
            rows.append(f"| `{method.upper()} {path}` | {said} |")
    return "\n".join(rows) + "\n"


def of_documents() -> str:
    """Every document that peers check, who signs it, what it says and what it holds."""
    rows = ["| document | signed by | content | fields |", "|---|---|---|---|"]
    for kind in (*KINDS.values(), RosterEntry):
        names = ", ".join(f"`{field.name}`" for field in fields(kind))
        signed = "" if kind is RosterEntry else SIGNED_BY[kind.TYPE]
        rows.append(f"| `{kind.__name__}` | {signed} | {(kind.__doc__ or '').splitlines()[0]} | {names} |")
    return "\n".join(rows) + "\n"


def of_reasons() -> str:
    """Every code with which trust is refused."""
    rows = ["| code | | what to do |", "|---|---|---|"]
    rows += [f"| `{code}` | {reason.means} | {reason.hint} |" for code, reason in REASONS.items()]
    return "\n".join(rows) + "\n"


def tables() -> dict[str, Callable[[], str]]:
    """Every table by name."""
    found: dict[str, Callable[[], str]] = {}
    for kind in (
        *(*algorithms().values(), *schedules().values(), *filters().values()),
        *(*selections().values(), *mixings().values()),
    ):
        name = kind.name if kind.name not in found else f"{kind.name}-schedule"  # an algorithm may be called the same
        found[name] = lambda kind=kind: of_dataclass(kind)
    models = {"job": JobSpec, "limits": UpdateLimits, "held-out": HeldOutEvaluation, "coordinator-settings": Settings}
    models |= {"edge-settings": EdgeSettings, "lr-schedule": LrScheduleTable}
    models |= {"early-stop": EarlyStopTable, "split-job": SplitSpec, "stages": StageTable}
    found |= {name: lambda model=model: of_model(model) for name, model in models.items()}
    return {
        **found,
        **of_gossip(),
        "presets": of_presets,
        "routes": of_routes,
        "trust-documents": of_documents,
        "reasons": of_reasons,
    }


def renewed(text: str) -> str:
    """The text with every table as the code has it now."""
    known = tables()
    return MARKED.sub(lambda found: found[1] + known[found[2]]() + found[3], text)


def documents() -> list[Path]:
    """Every document of the project."""
    return [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


if __name__ == "__main__":
    for path in documents():
        path.write_text(renewed(path.read_text()))
