"""A peer begins when all of its roster are there, tells for whom it waits, and its model can be written to a file."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shoal.cli.app import app
from shoal.core.errors import Refused, ShoalError
from shoal.sim.checks.conservation import floats
from shoal.sim.hosts.toy_models import ToyLearner
from shoal_peer.model_file import held_model, write_model
from shoal_peer.provision import InvitedNode, invite
from tests.peer.scenario import JOB, folders, node, until
from tests.support.ports import free_ports


def unset(root: Path, ports: list[int], min_peers: int = 0) -> Path:
    """The folders of a job that leaves `min_peers` at its default."""
    job = root / "job.toml"
    text = JOB.format(algorithm="fedavg", rounds=2, drain=100, min_peers=min_peers, patience_s=3.0, more="")
    job.write_text(text if min_peers else text.replace("min_peers = 0\n", ""))
    invited = [InvitedNode(name, f"http://127.0.0.1:{port}") for name, port in zip("abc", ports, strict=False)]
    invite(job, ToyLearner(1).init(3), invited, root / "peers")
    return root / "peers"


def test_by_default_all_of_the_roster_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of three are not enough; each says who is missing, where it was called, and what to do."""
    monkeypatch.setattr("shoal_peer.peer_status.WAITING_AFTER_S", 0.0)

    async def scene() -> None:
        ports = free_ports(3)
        peers = unset(tmp_path, ports)
        async with node(peers / "a", 1, port=ports[0]) as a, node(peers / "b", 2, port=ports[1]) as b:
            await until(
                lambda: a.start_gate.waiting and "2 of 3 peers are here; waiting for c" in a.start_gate.waiting[0]
            )
            await until(lambda: "cannot be reached" in "".join(a.start_gate.waiting))
            assert a.start_gate.waiting[1].startswith(f"c: http://127.0.0.1:{ports[2]}")
            assert "--join NAME=URL" in a.start_gate.waiting[2]
            assert "--min-peers 2" in a.start_gate.waiting[-1]
            assert a.status()["waiting"] == a.start_gate.waiting
            assert a.gossip.me.local_rounds == b.gossip.me.local_rounds == 0
            async with node(peers / "c", 3, port=ports[2]):
                await until(lambda: a.gossip.me.local_rounds == 2 and b.gossip.me.local_rounds == 2)
            assert a.observer.waits[-1] == a.start_gate.waiting == []  # type: ignore[attr-defined]

    asyncio.run(scene())


def test_fewer_are_enough_where_a_person_says_so(tmp_path: Path) -> None:
    async def scene() -> None:
        ports = free_ports(3)
        peers = unset(tmp_path, ports)
        async with node(peers / "a", 1, port=ports[0], min_peers=1) as a:
            await until(lambda: a.gossip.me.local_rounds == 2)
            assert a.observer.waits == []  # type: ignore[attr-defined]

    asyncio.run(scene())


def test_a_number_that_the_roster_cannot_reach_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal_peer.peer_status.WAITING_AFTER_S", 0.0)

    async def scene() -> None:
        ports = free_ports(2)
        async with node(unset(tmp_path, ports, min_peers=5) / "a", port=ports[0]) as a:
            await until(lambda: a.start_gate.waiting)
            assert a.start_gate.waiting[-1] == "the roster names 2 peers: invite more, or start with --min-peers 2"

    asyncio.run(scene())


def test_a_peers_model_is_written_while_it_runs_and_afterwards(tmp_path: Path) -> None:
    target = tmp_path / "model.safetensors"

    async def scene() -> None:
        peers = folders(tmp_path, "a", min_peers=1)
        with pytest.raises(Refused, match="no model yet"):
            held_model(peers / "a")
        async with node(peers / "a") as a:
            await until(lambda: (peers / "a/state/machine.json").exists() and held_model(peers / "a").local_rounds == 4)
            held = held_model(peers / "a")
            assert floats(held.model).tolist() == floats(a.gossip.me.model).tolist()
            assert held.local_rounds == a.gossip.me.local_rounds

    asyncio.run(scene())
    said = CliRunner().invoke(app, ["--json", "peer", "export", str(tmp_path / "peers" / "a"), "-o", str(target)])
    found = json.loads(said.stdout)["data"]["model"]
    assert target.stat().st_size == found["bytes"]
    again = CliRunner().invoke(app, ["peer", "export", str(tmp_path / "peers" / "a"), "-o", str(target)])
    assert again.exit_code == 2
    assert "exists" in again.output
    from safetensors.numpy import load_file

    kept = load_file(target)
    held = held_model(tmp_path / "peers" / "a")
    assert {name: kept[name].tolist() for name in kept} == {name: held.model[name].tolist() for name in kept}
    assert len(kept) == len(held.model.layout.leaves)


def test_a_model_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(ShoalError, match="there"):
        write_model(ToyLearner(1).init(3), tmp_path / "there")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
