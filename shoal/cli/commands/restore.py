"""`shoal restore`: jobs of a coordinator that has lost its disk, from the checkpoints that nodes keep."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.commands.nodes import confirm
from shoal.cli.terminal.options import Token, Url, Yes
from shoal.cli.terminal.output import out
from shoal.cli.terminal.text import safe, table

if TYPE_CHECKING:
    from shoal.client.api import CoordinatorApi
    from shoal.core.errors import ShoalError
    from shoal.recovery.checkpoint import CheckpointOffer, RecoveryChoice, RejectedOffer
    from shoal.runtime.http.checkpoint_offers import NodeOffers
    from shoal.trust.keys import SigningKey

PIECE_BYTES = 1024 * 1024


def restore(
    sources: Annotated[
        list[str],
        typer.Option(
            "--from",
            metavar="FOLDER_OR_URL",
            help="a node's state folder, or its address as a peer; repeatable",
            show_default=False,
        ),
    ],
    key: Annotated[
        Path | None,
        typer.Option(help="the coordinator's key (default: coordinator.pem in its data folder here)"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="list what was found and what was refused; change nothing")
    ] = False,
    base: Annotated[
        Path | None,
        typer.Option(help="base model of the jobs (safetensors), if no state folder here has it", show_default=False),
    ] = None,
    yes: Yes = False,
    url: Url = None,
    token: Token = None,
) -> int:
    """Restore jobs at a coordinator that has lost its disk, from the checkpoints that nodes keep.

    First put the old coordinator.pem into the new data folder and start the coordinator. The newest version that this
    key has signed is taken; checkpoints without a valid signature are refused. Nodes re-enrol with their own keys.
    Base models are taken from state folders of nodes that have fetched them.
    """
    from shoal.cli.commands.run import send_model
    from shoal.cli.connection import connect
    from shoal.recovery.checkpoint import choose
    from shoal.trust.keys import load_key

    own = load_key(key or _own_key())
    with ExitStack() as stack:
        places = _CheckpointSources(stack, own)
        offers = [offer for source in sources for offer in places.offers(source)]
        choices, rejected = choose(offers, own.public_key)
        rejected = [*places.failed, *rejected]
        if not choices:
            _show([], rejected)
            raise _nothing_signed(sources)
        rows = [_row(choice) for choice in choices]
        if dry_run:
            out.answer({"jobs": rows, "refused": rejected}, *_shown(rows, rejected))
            return 0
        with connect(url, token) as api:
            _show(rows, rejected)
            confirm(f"Restore {len(rows)} of these at {api.url}?", yes)
            if base is not None:
                send_model(api, base, base=True)
            there = {str(job["name"]) for job in api.every("/jobs", "jobs")}
            rows = [row | _begin(api, places, choice, there) for choice, row in zip(choices, rows, strict=True)]
    failed = sum(not row["restored"] for row in rows)
    out.answer({"jobs": rows, "refused": rejected}, *(_sentence(row) for row in rows))
    return 1 if failed else 0


def _nothing_signed(sources: list[str]) -> ShoalError:
    from shoal.core.errors import ShoalError

    text, hint = "no checkpoint signed by this key in", "name more nodes, or check the key: the lost coordinator's"
    return ShoalError(f"{text} {', '.join(sources)}", code="restore.nothing", hint=hint)


def _own_key() -> Path:
    from shoal.configuration import load
    from shoal.core.errors import ShoalError
    from shoal_coordinator.peers.trust_documents import KEY_FILE
    from shoal_coordinator.settings import Settings

    path = load(Settings, "coordinator", config=out.flags.config).data / KEY_FILE
    if not path.exists():
        hint = "give --key DATA/coordinator.pem, from the coordinator's data folder"
        raise ShoalError(f"no key at {path}", code="usage.missing", hint=hint)
    return path


class _CheckpointSources:
    """Sources of checkpoints: folders of this machine, and nodes."""

    def __init__(self, stack: ExitStack, key: SigningKey) -> None:
        self._stack, self._key = stack, key
        self._nodes: dict[str, NodeOffers] = {}
        self._folders: list[str] = []
        self.failed: list[RejectedOffer] = []

    def offers(self, source: str) -> list[CheckpointOffer]:
        """Return the offers of a source; failures go to `failed`."""
        from shoal.core.errors import ShoalError

        try:
            return self._called(source) if "://" in source else self._read(source)
        except ShoalError as error:
            self._fail(source, "", error)
            return []

    def _fail(self, source: str, job: str, error: Any) -> None:
        from shoal.recovery.checkpoint import RejectedOffer

        self.failed.append(RejectedOffer(source, "", job, "checkpoint", error.code, error.message))

    def _read(self, source: str) -> list[CheckpointOffer]:
        from shoal_edge_client.peering.recovery.local_checkpoints import offers_in

        self._folders.append(source)
        return offers_in(Path(source).expanduser())

    def _called(self, source: str) -> list[CheckpointOffer]:
        from shoal.runtime.http.checkpoint_offers import NodeOffers
        from shoal.runtime.http.client import Link

        link = self._stack.enter_context(Link(source))
        node = self._nodes[link.address.url] = NodeOffers(link, self._key)
        found = []
        for one in node.offers():
            if isinstance(one, tuple):
                self._fail(link.address.url, *one)
            else:
                found.append(one)
        return found

    def base(self, digest: str) -> Path | None:
        """Return a node's file of a base model, if a state folder here has it."""
        from shoal_edge_client.peering.recovery.local_checkpoints import base_in

        found = (base_in(Path(source).expanduser(), digest) for source in self._folders)
        return next(filter(None, found), None)

    @contextmanager
    def model(self, offer: CheckpointOffer, digest: str) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Yield (bytes, pieces) of an offer's model. Raises `ShoalError` when it is not available."""
        from shoal.core.errors import StorageFailed
        from shoal_edge_client.peering.recovery.local_checkpoints import model_in

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


def _begin(api: CoordinatorApi, sources: _CheckpointSources, choice: RecoveryChoice, there: set[str]) -> dict[str, Any]:
    """Submit a job with the first complete model, and return the columns that this adds to its row."""
    if choice.job in there:
        return {"why": "the coordinator already has a job with this name", "code": "job.exists"}
    from shoal.cli.commands.run import send_model, warn_of_base
    from shoal.client.api import segment
    from shoal.core.errors import ShoalError

    if base := sources.base(str(choice.spec.get("base_model", ""))):
        send_model(api, base, base=True)
    digest, why = choice.manifest.model_sha256, ""
    for offer in choice.holders:
        try:
            with sources.model(offer, digest) as (nbytes, pieces):
                api.upload(f"/blobs/{segment(digest)}", nbytes, pieces)
        except ShoalError as error:
            why = f"{offer.node or offer.source}: {error.message}"
            out.warn(why)
            continue
        body = {"spec": dict(choice.spec), "start_model": digest, "restore": choice.restore_request(offer.node)}
        try:
            found = api.create_job(body)
        except ShoalError as error:
            return {"why": error.message, "code": error.code}
        warn_of_base(found)
        return {"restored": True, "node": offer.node, "term": found["restored_from"]["term"]}
    return {"why": why, "code": "restore.model"}


def _row(choice: RecoveryChoice) -> dict[str, Any]:
    manifest = choice.manifest
    holders = [offer.node or offer.source for offer in choice.holders]
    row: dict[str, Any] = {"job": choice.job, "version": manifest.version, "signed_in_term": manifest.term}
    row |= {"term_seen": choice.term, "model_sha256": manifest.model_sha256}
    return row | {"held_by": holders, "peers": list(choice.peers), "created_at": choice.created_at, "restored": False}


def _shown(rows: list[dict[str, Any]], rejected: list[RejectedOffer]) -> list[Any]:
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


def _show(rows: list[dict[str, Any]], rejected: list[RejectedOffer]) -> None:
    for part in _shown(rows, rejected):
        out.notice(part)


def _sentence(row: dict[str, Any]) -> str:
    if not row["restored"]:
        return f"{safe(row['job'])} was not restored: {safe(row['why'])}"
    whose = safe(row["node"]) if row["node"] else "a node"
    return f"{safe(row['job'])} is restored from {whose}, at version {row['version']}, term {row['term']}"
