"""`shoal rebuild`: a coordinator that has lost its disk goes on from what nodes have kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.nodes import confirm
from shoal.cli.options import Token, Url, Yes
from shoal.cli.output import out
from shoal.cli.text import safe, table

if TYPE_CHECKING:
    from shoal.checkpoint import Choice, Offer, Rejected
    from shoal.cli.api import Api
    from shoal.runtime.offers import NodeOffers
    from shoal.trust.keys import Key

PIECE_BYTES = 1024 * 1024


def rebuild(
    sources: Annotated[
        list[str],
        typer.Option(
            "--from",
            metavar="FOLDER_OR_URL",
            help="a node's state folder, or the address where other nodes call it; repeatable",
            show_default=False,
        ),
    ],
    key: Annotated[
        Path | None,
        typer.Option(help="the coordinator's key (default: coordinator.pem in its data folder here)"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="only look: what is there, and what does not count")
    ] = False,
    yes: Yes = False,
    url: Url = None,
    token: Token = None,
) -> int:
    """Begin jobs again at a coordinator with an empty disk, from what nodes have kept of them.

    It needs its key of old: put coordinator.pem into the new data folder, and start it. Of all that nodes have, the
    newest version that this key has signed is taken; what it has not signed is refused by name. Nodes come back by
    themselves, by their own keys.
    """
    from shoal.checkpoint import choose
    from shoal.cli.api import connect
    from shoal.core.errors import ShoalError
    from shoal.trust.keys import load_key

    own = load_key(key or _own_key())
    with ExitStack() as stack:
        places = _Places(stack, own)
        offers = [offer for source in sources for offer in places.look(source)]
        choices, rejected = choose(offers, own.pub)
        rejected = [*places.failed, *rejected]
        if not choices:
            _show([], rejected)
            text = f"nothing that this key has signed is in {', '.join(sources)}"
            raise ShoalError(text, code="restore.nothing", hint="name more nodes; is it the coordinator's key of old?")
        rows = [_row(choice) for choice in choices]
        if dry_run:
            out.answer({"jobs": rows, "refused": rejected}, *_shown(rows, rejected))
            return 0
        with connect(url, token) as api:
            _show(rows, rejected)
            confirm(f"Begin {len(rows)} of these at {api.url}?", yes)
            there = {str(job["name"]) for job in api.every("/jobs", "jobs")}
            rows = [row | _begin(api, places, choice, there) for choice, row in zip(choices, rows, strict=True)]
    failed = sum(not row["rebuilt"] for row in rows)
    out.answer({"jobs": rows, "refused": rejected}, *(_sentence(row) for row in rows))
    return 1 if failed else 0


def _own_key() -> Path:
    from shoal.core.errors import ShoalError
    from shoal.settings import load
    from shoal_coordinator.papers import KEY_FILE
    from shoal_coordinator.settings import Settings

    path = load(Settings, "coordinator", config=out.flags.config).data / KEY_FILE
    if not path.exists():
        hint = "give --key DATA/coordinator.pem, from the coordinator's data folder"
        raise ShoalError(f"there is no key at {path}", code="usage.missing", hint=hint)
    return path


class _Places:
    """Where to look: folders here, and nodes that answer."""

    def __init__(self, stack: ExitStack, key: Key) -> None:
        self._stack, self._key = stack, key
        self._nodes: dict[str, NodeOffers] = {}
        self.failed: list[Rejected] = []

    def look(self, source: str) -> list[Offer]:
        """What is offered there; what cannot be had is noted."""
        from shoal.core.errors import ShoalError

        try:
            return self._called(source) if "://" in source else self._read(source)
        except ShoalError as error:
            self._fail(source, "", error)
            return []

    def _fail(self, source: str, job: str, error: Any) -> None:
        from shoal.checkpoint import Rejected

        self.failed.append(Rejected(source, "", job, "checkpoint", error.code, error.message))

    def _read(self, source: str) -> list[Offer]:
        from shoal_edge_client.peering.offers import offers_in

        return offers_in(Path(source).expanduser())

    def _called(self, source: str) -> list[Offer]:
        from shoal.runtime.http import Link
        from shoal.runtime.offers import NodeOffers

        link = self._stack.enter_context(Link(source))
        node = self._nodes[link.address.url] = NodeOffers(link, self._key)
        found = []
        for one in node.offers():
            if isinstance(one, tuple):
                self._fail(link.address.url, *one)
            else:
                found.append(one)
        return found

    @contextmanager
    def model(self, offer: Offer, digest: str) -> Iterator[tuple[int, Iterator[bytes]]]:
        """(length, pieces) of a model that an offer names. Raises `ShoalError` where it cannot be had."""
        from shoal.core.errors import StorageFailed
        from shoal_edge_client.peering.offers import model_in

        node = self._nodes.get(offer.source)
        if node is not None:
            with node.model(offer.job, digest) as found:
                yield found
            return
        source = model_in(Path(offer.source).expanduser(), offer.job, digest)
        if source is None:
            raise StorageFailed(f"{offer.source} lacks the model {digest[:12]}…", code="restore.model")
        places = range(0, len(source), PIECE_BYTES)
        yield len(source), (source[place : place + PIECE_BYTES] for place in places)


def _begin(api: Api, places: _Places, choice: Choice, there: set[str]) -> dict[str, Any]:
    """Give a job to the coordinator, with the model of the first node that has it whole; what came of it."""
    if choice.job in there:
        return {"why": "the coordinator has a job of that name", "code": "job.exists"}
    from shoal.cli.api import segment
    from shoal.core.errors import ShoalError

    digest, why = choice.manifest.model_sha256, ""
    for offer in choice.holders:
        try:
            with places.model(offer, digest) as (nbytes, pieces):
                api.upload(f"/bodies/{segment(digest)}", nbytes, pieces)
        except ShoalError as error:
            why = f"{offer.node or offer.source}: {error.message}"
            out.warn(why)
            continue
        told = {"spec": dict(choice.spec), "start_model": digest, "goes_on": choice.goes_on(offer.node)}
        try:
            found = api.post("/jobs", told)
        except ShoalError as error:
            return {"why": error.message, "code": error.code}
        return {"rebuilt": True, "node": offer.node, "term": found["rebuilt"]["term"]}
    return {"why": why, "code": "restore.model"}


# What is shown


def _row(choice: Choice) -> dict[str, Any]:
    manifest = choice.manifest
    holders = [offer.node or offer.source for offer in choice.holders]
    row: dict[str, Any] = {"job": choice.job, "version": manifest.version, "signed_in_term": manifest.term}
    row |= {"term_seen": choice.term, "model_sha256": manifest.model_sha256}
    return row | {"held_by": holders, "peers": list(choice.peers), "created_at": choice.created_at, "rebuilt": False}


def _shown(rows: list[dict[str, Any]], rejected: list[Rejected]) -> list[Any]:
    shown: list[Any] = []
    if rows:
        found = table("job", "version", "term", "model", "held by", "peers", prose=["held by", "peers"])
        for row in rows:
            held, peers = (", ".join(map(safe, row[name])) for name in ("held_by", "peers"))
            model = row["model_sha256"][:12]
            found.add_row(safe(row["job"]), str(row["version"]), str(row["signed_in_term"]), model, held, peers)
        shown.append(found)
    if rejected:
        found = table("refused", "job", "what", "code", "why", prose=["why", "refused"])
        for one in rejected:
            found.add_row(*map(safe, (one.node or one.source, one.job, one.what, one.code, one.why)))
        shown.append(found)
    return shown


def _show(rows: list[dict[str, Any]], rejected: list[Rejected]) -> None:
    for part in _shown(rows, rejected):
        out.notice(part)


def _sentence(row: dict[str, Any]) -> str:
    if not row["rebuilt"]:
        return f"{safe(row['job'])} was not begun: {safe(row['why'])}"
    whose = safe(row["node"]) if row["node"] else "a node"
    text = f"{safe(row['job'])} goes on from what {whose} had kept, at version {row['version']}, term {row['term']}"
    return f"{text}; its nodes come back by themselves"
