"""`shoal nodes`: nodes at a coordinator."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from shoal.cli.terminal.options import Token, Url, Yes, hand_down
from shoal.cli.terminal.output import out
from shoal.cli.terminal.text import safe, seconds, state, table
from shoal.core.errors import ShoalError

app = typer.Typer(help="Nodes at a coordinator: list, drain, block, activate, remove.")


@app.callback(invoke_without_command=True)
def nodes(context: typer.Context, url: Url = None, token: Token = None) -> None:
    """List nodes, or drain, block, activate or remove one."""
    hand_down(context, url=url, token=token)
    if context.invoked_subcommand is None:
        list_nodes(url, token)


@app.command("list")
def list_nodes(url: Url = None, token: Token = None) -> None:
    """List all nodes with state, device and software."""
    from shoal.cli.connection import connect

    with connect(url, token) as api:
        found = api.every("/nodes", "nodes")
    about = ("device", "shoal", "torch", "python", "platform")
    rows = table("node", "state", "jobs", "last seen", *about, prose=["jobs"], spare=about)
    for node in found:
        info = node.get("info") or {}
        seen = "–" if node["last_seen_s"] is None else seconds(node["last_seen_s"]) + " ago"
        values = [safe(value) for value in (device_text(info), *(info.get(name, "") for name in about[1:]))]
        held = "" if node["availability"] == "active" else f", {node['availability']}"
        rows.add_row(node["name"], state(node["state"]) + held, ", ".join(node["jobs"]), seen, *values)
    hint = "no nodes yet: [bold]shoal token create[/] makes a token, [bold]shoal join[/] uses it on another machine"
    out.answer({"nodes": found}, rows if found else hint)


def device_text(info: Mapping[str, Any]) -> str:
    """Return a node's devices in words, and its processes if it has several. Nodes may send any values."""
    processes = [f"{info['processes']} processes", info.get("parallel")] if "processes" in info else []
    return ", ".join(str(one) for one in (info.get("device"), info.get("hardware"), *processes) if one)


NodeName = Annotated[str, typer.Argument(metavar="NODE", help="name of the node", show_default=False)]


@app.command("drain")
def drain(node: NodeName, url: Url = None, token: Token = None) -> None:
    """Give a node no new tasks; its current task finishes. For maintenance; shoal nodes activate ends it."""
    set_availability(node, "drained", url, token)


@app.command("block")
def block(node: NodeName, url: Url = None, token: Token = None) -> None:
    """Give a node no new tasks and withdraw its current ones: its reports do not count. It stays enrolled."""
    set_availability(node, "blocked", url, token)


@app.command("activate")
def activate(node: NodeName, url: Url = None, token: Token = None) -> None:
    """Give tasks again to a node that was drained or blocked."""
    set_availability(node, "active", url, token)


def set_availability(node: str, availability: str, url: str | None, token: str | None) -> None:
    """Set the availability of a node, and print the node."""
    from shoal.cli.connection import connect
    from shoal.client.api import segment

    with connect(url, token) as api:
        found = api.put(f"/nodes/{segment(node)}/availability", {"availability": availability})
    out.answer({"node": found}, f"{node} is {found['availability']}")


@app.command("remove")
def remove(
    node: NodeName,
    yes: Yes = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Remove a node: revoke its credential. It needs a new token to come back. Its reports stay."""
    from shoal.cli.connection import connect
    from shoal.client.api import segment

    with connect(url, token) as api:
        path = f"/nodes/{segment(node)}"
        api.get(path)  # report a wrong name before asking for confirmation
        confirm(f"Revoke the credential of {safe(node)}?", yes)
        api.delete(path)
    out.answer({"removed": node}, f"{node} is removed")


def confirm(question: str, yes: bool) -> None:
    """Ask for confirmation. Raises `ShoalError` without a terminal, `Abort` for a no."""
    if yes:
        return
    if out.flags.json or not is_person():
        raise ShoalError("this needs confirmation, and stdin is not a terminal", code="usage.confirm", hint="add --yes")
    typer.confirm(question, abort=True)


def is_person() -> bool:
    """Return whether stdin is a terminal."""
    return sys.stdin.isatty()
