"""`shoal nodes`: the edge clients that a coordinator knows."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from shoal.cli.options import Token, Url, Yes, hand_down
from shoal.cli.output import out
from shoal.cli.text import safe, seconds, state, table
from shoal.core.errors import ShoalError

app = typer.Typer(help="Edge clients that a coordinator knows: list, remove.")


@app.callback(invoke_without_command=True)
def nodes(context: typer.Context, url: Url = None, token: Token = None) -> None:
    """Edge clients that a coordinator knows: list, remove. Alone: list."""
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
        rows.add_row(node["name"], state(node["state"]), ", ".join(node["jobs"]), heard, *told)
    hint = "no nodes yet: [bold]shoal token create[/] makes a token, [bold]shoal join[/] uses it on another machine"
    out.answer({"nodes": found}, rows if found else hint)


@app.command("remove")
def remove(
    node: Annotated[str, typer.Argument(metavar="NODE", help="name of the node", show_default=False)],
    yes: Yes = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Revoke a node's credential: it is sent away, and needs a new token to come back. What it reported stays."""
    from shoal.cli.api import connect, segment

    confirm(f"Revoke the credential of {node}?", yes)
    with connect(url, token) as api:
        api.delete(f"/nodes/{segment(node)}")
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
