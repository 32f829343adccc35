"""The page that a node shows of itself: plain HTML without a script, and nothing on it comes from elsewhere.

Every text on it is escaped, names of peers as well. The policy forbids scripts, frames, forms and anything fetched; the
one style sheet is named by its hash. The page shows what `GET /p2p/JOB/status` answers, and no more.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Sequence
from html import escape

from shoal.peering.http.node_overview import NodeOverview, PeerOverview

REFRESH_S = 5
MEASURED = ("eval/accuracy", "eval/loss", "train/loss")
STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem}
h1{font-size:1.4rem;margin:0 0 1.5rem}h2{font-size:1.1rem;margin:1.5rem 0 .3rem}
table{border-collapse:collapse;width:100%;margin:.8rem 0}
th,td{text-align:left;padding:.35rem .6rem;border-bottom:1px solid #8884;vertical-align:top}
th{font-weight:600;font-size:.85rem}.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.dead,.suspect,li{color:#b3401f}.alive{color:#1d7a46}.left,small{color:#777}
ul{padding-left:1.2rem}progress{width:100%;height:.6rem}
@media(prefers-color-scheme:dark){.dead,.suspect,li{color:#ff9a76}.alive{color:#6fd39b}.left,small{color:#aaa}}
"""
_STYLE_HASH = b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def render(peer_id: str, jobs: Sequence[NodeOverview]) -> str:
    """Return the page of a node that takes part in these jobs."""
    names = ", ".join(sorted({one.node for one in jobs})) or "shoal peer"
    body = "".join(map(_job, jobs)) or "<p>This node takes part in no job at the moment.</p>"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><meta http-equiv="refresh" content="{REFRESH_S}">'
        f"<title>{escape(names)} · shoal</title><style>{STYLE}</style></head><body>"
        f"<h1>{escape(names)} <small>{escape(peer_id)}</small></h1>{body}"
        f"<p><small>The page shows this node’s own view and reloads every {REFRESH_S} s.</small></p></body></html>"
    )


def _job(one: NodeOverview) -> str:
    of = f" of {one.rounds}" if one.rounds else ""
    bar = f'<progress max="{one.rounds}" value="{min(one.local_rounds, one.rounds)}"></progress>' if one.rounds else ""
    measured = [
        f"{name} {one.metrics[name]:.4g}"
        for name in ("eval/accuracy", "eval/loss", "train/loss")
        if name in one.metrics
    ]
    facts = [
        one.phase,
        f"local rounds: {one.local_rounds}{of}",
        f"{one.live} of {len(one.peers)} others here",
        *measured,
    ]
    rows = "".join(map(_row, one.peers))
    head = "".join(
        f"<th{kind}>{name}</th>"
        for name, kind in (
            ("peer", ""),
            ("state", ""),
            ("exchanges", ' class="n"'),
            ("last exchange", ' class="n"'),
            ("sent", ' class="n"'),
            ("received", ' class="n"'),
            ("problem", ""),
        )
    )
    problems = "".join(f"<li>{escape(text)}</li>" for text in one.problems)
    return (
        f"<section><h2>{escape(one.job)}</h2><p>{escape(', '.join(filter(None, facts)))}</p>{bar}"
        + (f"<ul>{problems}</ul>" if problems else "")
        + f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></section>"
    )


def _row(row: PeerOverview) -> str:
    last = "never" if row.last_exchange_s is None else f"{row.last_exchange_s:.0f} s ago"
    numbers = (str(row.exchanges), last, _size(row.sent), _size(row.received))
    cells = "".join(f'<td class="n">{escape(text)}</td>' for text in numbers)
    state = escape(row.state, quote=True)
    return f'<tr><td>{escape(row.name)}</td><td class="{state}">{state}</td>{cells}<td>{escape(row.problem)}</td></tr>'


def _size(nbytes: int) -> str:
    """Return bytes in the unit that leaves few digits."""
    value = float(nbytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} B" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.4g} TB"
