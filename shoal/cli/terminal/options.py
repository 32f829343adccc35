"""Options of several commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

Url = Annotated[
    str | None,
    typer.Option(help="address of the coordinator; else SHOAL_CLIENT__URL or shoal.toml", show_default=False),
]
Token = Annotated[
    str | None,
    typer.Option(
        help="access token of an operator (of a viewer, to read only); better: its file in SHOAL_CLIENT__TOKEN_FILE",
        show_default=False,
    ),
]
Job = Annotated[str, typer.Argument(metavar="JOB", help="name of the job", show_default=False)]
JobFile = Annotated[Path, typer.Argument(metavar="JOB.toml", help="job file", show_default=False)]
Why = Annotated[str, typer.Option(help="reason, recorded in the job's events", show_default=False)]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda, cuda:I or mps (default: the learner's own choice)", show_default=False)
]
Precision = Annotated[
    str | None,
    typer.Option(help="float32, or bf16 / fp16 for mixed precision (default: the learner's)", show_default=False),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="do not ask")]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="override a value of the job file, e.g. algorithm.lr=0.05",
        show_default=False,
    ),
]
ModelOutput = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="write the final model to this file (safetensors)", show_default=False),
]
Presets = Annotated[
    str | None,
    typer.Option(
        metavar="PRESET,PRESET", help="run the job under each of these presets, and compare", show_default=False
    ),
]


def hand_down(context: typer.Context, **given: Any) -> None:
    """Pass options of a group (`shoal jobs --url U show JOB`) to its command, unless the command sets them."""
    values = {name: value for name, value in given.items() if value is not None}
    if context.invoked_subcommand is not None:
        context.default_map = {context.invoked_subcommand: values}


@dataclass(frozen=True)
class ComparisonOptions:
    """Options of a comparison."""

    metric: Annotated[
        str,
        typer.Option(help="metric to compare (default: the first of held_out/accuracy, eval/accuracy that all have)"),
    ] = ""
    target: Annotated[
        float | None,
        typer.Option(
            help="value of the metric to reach (default: 98 % of the best value of the worst run)", show_default=False
        ),
    ] = None
    baseline: Annotated[
        str, typer.Option(help="run whose bytes others are compared with (default: the one with most bytes)")
    ] = ""
    by: Annotated[Literal["run", "node"], typer.Option(help="node: also list the bytes of each node")] = "run"


def spread(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command with each dataclass parameter replaced by one option per field."""
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {
        name: one.annotation for name, one in signature.parameters.items() if is_dataclass(one.annotation)
    }
    parameters: list[inspect.Parameter] = []
    for name, one in signature.parameters.items():
        parameters += _options_of(groups[name]) if name in groups else [one]

    @wraps(command)
    def spreading(**given: Any) -> Any:
        made = {name: kind(**{one.name: given.pop(one.name) for one in fields(kind)}) for name, kind in groups.items()}
        return command(**given, **made)

    vars(spreading)["__signature__"] = signature.replace(parameters=parameters)
    spreading.__annotations__ = {one.name: one.annotation for one in parameters}
    return spreading


def _options_of(kind: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=hints[one.name])
        for one in fields(kind)
    ]
