"""`shoal conformance`: the test of edge clients in other languages."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.terminal.options import Token
from shoal.cli.terminal.output import out
from shoal.cli.terminal.text import table

if TYPE_CHECKING:
    from shoal.client.client import CoordinatorClient
    from shoal.conformance.cases import ConformanceCase

LOOK_S = 0.5
COLORS = {"passed": "green", "refused": "yellow", "failed": "red"}


def conformance(
    url: Annotated[
        str | None,
        typer.Argument(metavar="URL", help="address of the coordinator; else SHOAL_CLIENT__URL", show_default=False),
    ] = None,
    *,
    nodes: Annotated[int, typer.Option(min=1, help="nodes to wait for; those that are online are tested")] = 1,
    only: Annotated[
        list[str] | None, typer.Option(metavar="CASE", help="run only this case; repeatable", show_default=False)
    ] = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="limit per case, and for nodes to join")
    ] = 60,
    token: Token = None,
) -> int:
    """Test edge clients of any language: run jobs whose results are known to the bit.

    Example: shoal conformance http://127.0.0.1:8080 --nodes 2

    The nodes that are online must run the conformance learner (docs/reference/protocol.md).
    Exit code 1 if a case failed.
    """
    from shoal.cli.connection import client_settings
    from shoal.client.client import CoordinatorClient
    from shoal.conformance.kit import ConformanceKit

    cases = chosen(only or [])
    with CoordinatorClient(client_settings(url, token)) as coordinator:
        kit = ConformanceKit(coordinator, online(coordinator, nodes, timeout), timeout)
        results = []
        with out.progress("testing", len(cases)) as advance:
            for done, case in enumerate(cases):
                advance(done, case.name)
                results.append(kit.run(case))
    shown = table("case", "result", "description", "why", prose=("description", "why"))
    for one in results:
        shown.add_row(one.case, f"[{COLORS[one.verdict]}]{one.verdict}[/]", one.about, one.why)
    out.answer({"nodes": kit.nodes, "cases": [asdict(one) for one in results]}, shown)
    return 0 if all(one.is_ok for one in results) else 1


def chosen(names: list[str]) -> list[ConformanceCase]:
    """Return the cases of these names, or all. Raises `ShoalError` for an unknown name."""
    from shoal.conformance.cases import CASES
    from shoal.core.errors import ShoalError
    from shoal.plugins import suggestion

    known = {case.name: case for case in CASES}
    for name in names:
        if name not in known:
            raise ShoalError(f"there is no case {name!r}", code="usage.case", hint=suggestion(name, known))
    return [case for case in CASES if not names or case.name in names]


def online(coordinator: CoordinatorClient, wanted: int, patience_s: float) -> list[str]:
    """Return the nodes that are online, once there are enough. Raises `ShoalError` when they do not come."""
    from shoal.core.errors import ShoalError

    until = time.monotonic() + patience_s
    while True:
        found = [str(one["name"]) for one in coordinator.nodes if one["state"] == "online"]
        if len(found) >= wanted:
            return found
        if time.monotonic() > until:
            text = f"{len(found)} of {wanted} nodes are online at {coordinator.url}"
            hint = "join the client under test; shoal token create makes a token for it"
            raise ShoalError(text, code="conformance.nodes", hint=hint)
        time.sleep(LOOK_S)
