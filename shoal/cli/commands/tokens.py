"""`shoal token`: tokens for nodes and people."""

from __future__ import annotations

import socket
from typing import Annotated, Literal

import typer

from shoal.cli.terminal.options import Token, Url, hand_down
from shoal.cli.terminal.output import out
from shoal.cli.terminal.text import pairs, safe, table

USES_MAX = 100_000  # as the API has it
ID_LETTERS = 12

app = typer.Typer(help="Tokens for nodes and people: create, list, revoke.")


@app.callback()
def tokens(context: typer.Context, url: Url = None, token: Token = None) -> None:
    """Create, list and revoke tokens for nodes and people."""
    hand_down(context, url=url, token=token)


@app.command("create")
def create(
    role: Annotated[
        Literal["node", "operator", "viewer"],
        typer.Option(help="node: enrols nodes; operator: may do everything; viewer: may read"),
    ] = "node",
    name: Annotated[str, typer.Option(help="only a node of this name may use it", show_default=False)] = "",
    uses: Annotated[int, typer.Option(min=1, max=USES_MAX, help="number of nodes that it enrols")] = 1,
    ttl_s: Annotated[
        float | None,
        typer.Option(
            min=1, help="seconds until it expires (default: 900 for nodes, a year for people)", show_default=False
        ),
    ] = None,
    url: Url = None,
    token: Token = None,
) -> None:
    """Create a token, and print it once with the command that uses it."""
    from shoal.cli.connection import connect
    from shoal.runtime.http.coordinator_url import is_loopback, parse

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
        rows.append(("", f"[dim]{remote_address_hint(parse(address).host, bool(made.get('loopback')))}[/]"))
    out.answer({**made, "role": role, "use": use}, pairs(rows))


def remote_address_hint(host: str, is_closed: bool) -> str:
    """Return how nodes on other machines reach a coordinator that is called by its loopback address here."""
    if is_closed:
        return "from another machine: not yet, the coordinator listens on this one alone; start it with --host 0.0.0.0"
    return f"from another machine: {socket.gethostname()} instead of {host}"


@app.command("list")
def list_tokens(url: Url = None, token: Token = None) -> None:
    """List the tokens that have not expired, by their first characters."""
    from shoal.cli.connection import connect

    with connect(url, token) as api:
        found = api.get("/tokens")["tokens"]
    rows = table(
        "id", "role", "uses left", "only for", "sessions", "created", "expires", right=["uses left", "sessions"]
    )
    for one in found:
        left = f"{one['uses_left']} of {one['uses']}" if one["role"] == "node" else "–"
        times = [one[name][:16].replace("T", " ") for name in ("created_at", "expires_at")]
        sessions = str(one["sessions"]) if one["role"] != "node" else "–"
        rows.add_row(safe(one["id"]), one["role"], left, safe(one["name"] or "–"), sessions, *times)
    hint = "no tokens: [bold]shoal token create[/] makes one (the operators' own, in operator.token, is not listed)"
    out.answer({"tokens": found}, rows if found else hint)


@app.command("revoke")
def revoke(
    which: Annotated[
        str,
        typer.Argument(
            metavar="TOKEN", help="its first 12 characters, as listed, or the whole token", show_default=False
        ),
    ],
    url: Url = None,
    token: Token = None,
) -> None:
    """Revoke a token and end its browser sessions. Nodes that enrolled with it stay.

    Example: shoal token revoke sht_7SpQetou
    """
    from shoal.cli.connection import connect
    from shoal.client.api import segment

    with connect(url, token) as api:
        api.delete(f"/tokens/{segment(which[:ID_LETTERS])}")
    out.answer({"revoked": which[:ID_LETTERS]}, f"{safe(which[:ID_LETTERS])} is revoked")
