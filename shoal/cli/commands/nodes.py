"""`shoal nodes`: the edge clients that a coordinator knows."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from shoal.cli.options import Token, Url, Yes, hand_down
from shoal.cli.output import out
from shoal.cli.text import safe, seconds, state, table
from shoal.core.errors import ShoalError

app = typer.Typer(help="Edge clients that a coordinator knows: list, drain, block, activate, remove.")


@app.callback(invoke_without_command=True)
def nodes(context: typer.Context, url: Url = None, token: Token = None) -> None:
    """Edge clients that a coordinator knows: list, drain, block, activate, remove. Alone: list."""
    hand_down(context, url=url, token=token)
    if context.invoked_subcommand is None:
        list_nodes(url, token)


@app.command("list")
def list_nodes(url: Url = None, token: Token = None) -> None:
    """List all nodes, with their state and what they run on."""
    from shoal.cli.api import connect

    with connect(url, token) as api:
        found = api.every("/nodes", "nodes")
    about = ("device", "shoal", "torch", "python", "platform")
    rows = table("node", "state", "jobs", "heard of", *about, prose=["jobs"], spare=about)
    for node in found:
        info = node.get("info") or {}
        heard = "–" if node["last_seen_s"] is None else seconds(node["last_seen_s"]) + " ago"
        told = [safe(info.get(name, "")) for name in about]
        held = "" if node["availability"] == "active" else f", {node['availability']}"
        rows.add_row(node["name"], state(node["state"]) + held, ", ".join(node["jobs"]), heard, *told)
    hint = "no nodes yet: [bold]shoal token create[/] makes a token, [bold]shoal join[/] uses it on another machine"
    out.answer({"nodes": found}, rows if found else hint)


NodeName = Annotated[str, typer.Argument(metavar="NODE", help="name of the node", show_default=False)]


@app.command("drain")
def drain(node: NodeName, url: Url = None, token: Token = None) -> None:
    """Ask a node nothing new, in any job: it finishes what it does. For maintenance; shoal nodes activate ends it."""
    set_availability(node, "drained", url, token)


@app.command("block")
def block(node: NodeName, url: Url = None, token: Token = None) -> None:
    """Withdraw what a node was asked, and ask it nothing new: what it reports does not count. It stays enrolled."""
    set_availability(node, "blocked", url, token)


@app.command("activate")
def activate(node: NodeName, url: Url = None, token: Token = None) -> None:
    """Let jobs ask a node again that was drained or blocked."""
    set_availability(node, "active", url, token)


def set_availability(node: str, availability: str, url: str | None, token: str | None) -> None:
    """Tell the coordinator, and print the node as it is then."""
    from shoal.cli.api import connect, segment

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
    """Revoke a node's credential: it is sent away, and needs a new token to come back. What it reported stays."""
    from shoal.cli.api import connect, segment

    with connect(url, token) as api:
        path = f"/nodes/{segment(node)}"
        api.get(path)  # a wrong name is told before anybody is asked
        confirm(f"Revoke the credential of {safe(node)}?", yes)
        api.delete(path)
    out.answer({"removed": node}, f"{node} is removed")


def confirm(question: str, yes: bool) -> None:
    """Ask before something that can't be undone. Raises `ShoalError` where there is nobody to ask, `Abort` at a no."""
    if yes:
        return
    if out.flags.json or not is_person():
        raise ShoalError("this needs a yes, and there is nobody to ask", code="usage.confirm", hint="add --yes")
    typer.confirm(question, abort=True)


def is_person() -> bool:
    """Whether somebody sits at the other end of stdin."""
    return sys.stdin.isatty()
