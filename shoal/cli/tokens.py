"""`shoal token`: who may come in."""

from __future__ import annotations

import socket
from typing import Annotated, Literal

import typer

from shoal.cli.options import Token, Url, hand_down
from shoal.cli.output import out
from shoal.cli.text import pairs

app = typer.Typer(help="Tokens for nodes and people.")


@app.callback()
def tokens(context: typer.Context, url: Url = None, token: Token = None) -> None:
    """Tokens for nodes and people: create."""
    hand_down(context, url=url, token=token)


@app.command("create")
def create(
    role: Annotated[
        Literal["node", "operator", "viewer"],
        typer.Option(help="node: joins once; operator: may do all; viewer: may look"),
    ] = "node",
    name: Annotated[str, typer.Option(help="only a node of this name may use it", show_default=False)] = "",
    uses: Annotated[int, typer.Option(min=1, max=1000, help="how many nodes may join with it")] = 1,
    ttl_s: Annotated[
        float | None,
        typer.Option(
            min=1, help="seconds until it expires (default: 900 for nodes, a year for people)", show_default=False
        ),
    ] = None,
    url: Url = None,
    token: Token = None,
) -> None:
    """Make a token, and say how it is used. It is shown this once."""
    from shoal.cli.api import connect
    from shoal.runtime.address import is_loopback, parse

    wanted = {"role": role, "uses": uses, "ttl_s": ttl_s, "name": name or None}
    with connect(url, token) as api:
        made = api.post("/tokens", wanted)
        address = api.url
    option = f" --name {name}" if name else ""
    use = {
        "node": f"shoal join {address} --token {made['token']} --learner FILE.py:learner{option}",
        "operator": f"shoal jobs list --url {address} --token {made['token']}",
        "viewer": f"open {address} and sign in with it",
    }[role]
    rows = [("token", made["token"]), ("expires", made["expires_at"] or "never"), ("use", use)]
    if role == "node" and is_loopback(parse(address)):
        rows.append(("", f"[dim]from another machine: {socket.gethostname()} instead of {parse(address).host}[/]"))
    out.answer({**made, "role": role, "use": use}, pairs(rows))
