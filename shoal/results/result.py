"""The result of a simulated job, from `shoal.simulate`.

result = shoal.simulate(spec, learners)
result                                  # a short table, in a notebook too
result.save("model.safetensors")
network = result.load_into(network())   # the torch module with the trained weights
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from shoal.core.errors.phrases import counted, is_curve_point, number, percent, seconds, size
from shoal.core.model.tree import Tree
from shoal.core.protocol.machine import JobEvent
from shoal.core.protocol.message import Metrics
from shoal.core.scheduling.selection import join_names
from shoal.model_file import save_model
from shoal.results.columns import Columns, VersionRow, columns_of, plot_columns
from shoal.results.run_record import NodeTraffic

if TYPE_CHECKING:
    from shoal.model_file import Module

Fidelity = Literal["lean", "wire"]

ROWS_MAX = 12
"""Versions in a table."""

METRICS_MAX = 4
"""Maximum number of metrics in a table, so that it fits a page."""

COUNTS = ("/asked", "/examples", "/nodes")
"""End the names of metrics that say how much was measured."""

WARNINGS = ("warning", "refusal")


@dataclass(frozen=True)
class VersionResult:
    """A version. `metrics` were measured on its model; bytes count from the previous version.

    `opened_s` and `closed_s` are virtual seconds since the start.
    """

    number: int
    why: str
    opened_s: float
    closed_s: float
    reports: int
    metrics: Metrics
    up_bytes: int
    down_bytes: int
    nodes: Mapping[str, NodeTraffic]
    """The same bytes by node."""


@dataclass(frozen=True, repr=False)
class Result:
    """The result of a job. Bytes are those of frames and payloads by node, without HTTP overhead."""

    name: str
    state: str
    """"done"; "stopped" by a callback or "interrupted" by Ctrl-C: then the model is that of the last version made."""
    versions: tuple[VersionResult, ...]
    model: Tree
    """The final model: names and numpy arrays; bfloat16, which numpy lacks, as float32 of the same values."""
    metrics: Metrics
    """Metrics of the final model: "eval/…" are means over the nodes' own test data, weighted by examples; "held_out/…"
    are of data that no node has."""
    events: tuple[JobEvent, ...]
    up_bytes: Mapping[str, int]
    """From each node to the coordinator."""
    down_bytes: Mapping[str, int]
    uncounted: tuple[str, ...] = ()
    """Nodes that were asked, and of which no update ever counted."""
    fidelity: Fidelity = "wire"
    """"wire": simulated with journal, disks and processes, as faults need, "lean": without them."""
    training: str = ""
    """The numbers of tasks whose learners were trained, and of evaluations that were done, at once and one by one, and
    why; empty where none could be."""
    checkpoints: Mapping[int, Tree] = field(default_factory=dict)
    """The models of every `checkpoint_every`-th version, if the job sets it."""

    @property
    def accuracy(self) -> float:
        """The final model's mean accuracy. Raises `KeyError` when no learner measures it."""
        return self.metrics["eval/accuracy"]

    def save(self, path: str | Path) -> Path:
        """Write the final model as a safetensors file and return its path. Raises `StorageFailed`."""
        return save_model(self.model, path)

    def save_checkpoints(self, path: str | Path) -> list[Path]:
        """Write each checkpoint beside this path, such as model-10.safetensors for model.safetensors."""
        whole = Path(path)
        return [save_model(one, whole.with_stem(f"{whole.stem}-{number}")) for number, one in self.checkpoints.items()]

    def load_into(self, module: Module, *, strict: bool = True) -> Module:
        """Copy the final model's weights into a torch module, bit for bit, and return the module.

        `strict=False` leaves tensors of the module alone that the model lacks. Raises `InvalidPayload` that names what
        differs.
        """
        from shoal.learn.training.weights import load_into

        return load_into(module, self.model, strict=strict)

    def columns(self) -> Columns:
        """Return version, seconds, reports, bytes since the start and all metrics as lists, a number for each version:
        `pandas.DataFrame(result.columns())`."""
        return columns_of(
            [
                VersionRow(one.number, one.closed_s, one.reports, one.up_bytes, one.down_bytes, one.metrics)
                for one in self.versions
            ]
        )

    def plot(self, metric: str = "accuracy", x: str = "version", *, axes: Any = None) -> Any:
        """Draw a metric against another column, such as "bytes", and return the axes of matplotlib.

        `metric`: "eval/loss", or "loss" for the first of held_out, eval and train. `axes`: draw there, for example a
        second result. Raises `InvalidJob` for an unknown name, and `ShoalError` without matplotlib.
        """
        return plot_columns(self.columns(), metric, x, axes, self.name)

    # For people

    def table(self, rows_max: int = ROWS_MAX) -> tuple[list[str], list[list[str]]]:
        """Return (columns, rows) of at most `rows_max` versions: the last one and, evenly spaced, measured ones."""
        known = dict.fromkeys(name for one in self.versions for name in one.metrics if not is_curve_point(name))
        judged = [name for name in known if name.startswith(("held_out/", "eval/")) and not name.endswith(COUNTS)]
        shown = sorted(judged, key=lambda name: not name.endswith("/accuracy"))[:METRICS_MAX]
        listed = self.versions
        if shown and len(listed) > rows_max:
            listed = tuple(one for one in listed if one is listed[-1] or shown[0] in one.metrics)
        step = max(1, -(-len(listed) // rows_max))
        columns = ["version", *(name.removeprefix("eval/") for name in shown), "reports", "up", "down", "at"]
        rows = [
            [
                str(version.number),
                *(_value(name, version.metrics.get(name)) for name in shown),
                str(version.reports),
                size(version.up_bytes),
                size(version.down_bytes),
                seconds(version.closed_s),
            ]
            for version in listed[::-step][::-1]
        ]
        return columns, rows

    def _lines(self) -> list[str]:
        """Return the lines above the table: state, bytes and warnings."""
        nodes = counted(len({*self.up_bytes, *self.down_bytes}), "node")
        up, down = sum(self.up_bytes.values()), sum(self.down_bytes.values())
        made = counted(max(0, len(self.versions) - 1), "version")
        lines = [f"{self.name}: {self.state}, {made}, {nodes}, {size(up)} up, {size(down)} down"]
        if warnings := [event.text for event in self.events if event.kind in WARNINGS]:
            lines.append(f"{counted(len(warnings), 'warning')} in events, the last: {warnings[-1]}")
        if self.uncounted:
            lines.append(f"never counted: {join_names(self.uncounted)}")
        return lines

    def __repr__(self) -> str:
        """Return a short table of the job."""
        columns, rows = self.table()
        widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
        table = [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in (columns, *rows)
        ]
        return "\n".join([*self._lines(), *table])

    def _repr_html_(self) -> str:
        """Return the table as HTML for notebooks."""
        columns, rows = self.table()
        lines = "<br>".join(escape(line) for line in self._lines())
        head = "".join(f"<th>{escape(column)}</th>" for column in columns)
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
        return f"<p>{lines}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _value(name: str, value: float | None) -> str:
    return percent(value) if name.endswith("accuracy") else number(value)
