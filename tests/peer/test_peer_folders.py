"""Folders that an operator makes, and a peer's use of them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from shoal.core.errors import InvalidJob, NotAllowed, Refused, StorageFailed
from shoal.core.model.tree import Tree
from shoal.peering.state.peer_state import DOCUMENT_FILES, PeerState, doubles, load_verifier, read_documents
from shoal.sim.hosts.toy_models import ToyLearner, toy_tree
from shoal.trust.keys import load_or_create
from shoal_peer.provision import InvitedNode, invite
from tests.peer.scenario import JOB, folders, node

MODEL = ToyLearner(1).init(3)


def test_each_peer_finds_itself_and_the_others(tmp_path: Path) -> None:
    peers = folders(tmp_path)
    for name in "abc":
        documents = read_documents(peers / name)
        assert documents.me.node == name
        assert [peer.node for peer in documents.others] == sorted(set("abc") - {name})
        assert (peers / name / "key.pem").stat().st_mode & 0o077 == 0
    assert not (peers / "a" / "operator.pem").exists()


def test_a_second_call_admits_more_and_keeps_keys(tmp_path: Path) -> None:
    peers = folders(tmp_path, "ab")
    before = read_documents(peers / "a")
    again = [InvitedNode("b", "http://10.0.0.9:1"), InvitedNode("c", "")]
    roster = invite(tmp_path / "job.toml", MODEL, again, peers)
    assert roster.version == 2
    after = read_documents(peers / "a")
    assert [peer.node for peer in after.roster.peers] == ["a", "b", "c"]
    assert after.roster.peers[1].urls == ("http://10.0.0.9:1",)
    assert after.me == before.me
    assert after.charter == before.charter
    assert not after.roster.peers[2].is_reachable


def test_a_key_may_be_the_nodes_own(tmp_path: Path) -> None:
    peers = folders(tmp_path, "ab")
    own = load_or_create(tmp_path / "own.pem")
    invite(tmp_path / "job.toml", MODEL, [InvitedNode("c", "", own.public_key)], peers)
    assert not (peers / "c" / "key.pem").exists()
    with pytest.raises(InvalidJob, match=r"no key\.pem"):
        read_documents(peers / "c")
    (tmp_path / "own.pem").rename(peers / "c" / "key.pem")
    assert read_documents(peers / "c").me.public_key == own.public_key


def test_another_job_needs_another_folder(tmp_path: Path) -> None:
    peers = folders(tmp_path, "ab")
    job = tmp_path / "job.toml"
    job.write_text(job.read_text().replace("seed = 3", "seed = 4"))
    with pytest.raises(InvalidJob, match="another form"):
        invite(job, MODEL, [InvitedNode("c", "")], peers)


@pytest.mark.parametrize("name", ["fedadam", "scaffold", "admm", "lbfgs", "codistillation"])
def test_a_job_that_needs_a_server_is_refused(name: str, tmp_path: Path) -> None:
    """Each peer would keep for itself what the method keeps once, at its server."""
    job = tmp_path / "job.toml"
    job.write_text(f'name = "toys"\nlearner = "nowhere.py:learner"\n[algorithm]\nname = "{name}"\n')
    with pytest.raises(InvalidJob, match=f"{name} keeps state at a server besides the model") as refused:
        invite(job, MODEL, [InvitedNode("a", ""), InvitedNode("b", "")], tmp_path / "peers")
    assert refused.value.hint == "choose one of diloco, fedavg, fedavgm, fedprox, fedsgd"


@pytest.mark.parametrize("name", DOCUMENT_FILES)
def test_a_missing_document_is_named(tmp_path: Path, name: str) -> None:
    peers = folders(tmp_path)
    (peers / "a" / name).unlink()
    with pytest.raises(InvalidJob, match=name.replace(".", r"\.")):
        read_documents(peers / "a")


def test_documents_of_different_jobs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    peers, others = folders(tmp_path), folders(tmp_path / "other")
    job, roster = peers / "a" / "job.toml", (peers / "a" / "roster.json").read_bytes()
    job.write_text(JOB.format(algorithm="fedavg", rounds=5, drain=1, min_peers=1, patience_s=1, more=""))
    with pytest.raises(InvalidJob, match="not the job of the charter"):
        read_documents(peers / "a")
    (peers / "b" / "roster.json").write_bytes((others / "b" / "roster.json").read_bytes())
    with pytest.raises(NotAllowed, match="no key that"):
        read_documents(peers / "b")
    with pytest.raises(NotAllowed, match="no key that"):
        read_documents(others / "b", peers / "c" / "roster.json")
    assert roster
    (peers / "c" / "key.pem").unlink()
    load_or_create(peers / "c" / "key.pem")
    with pytest.raises(InvalidJob, match="does not name the key"):
        read_documents(peers / "c")


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with PeerState(tmp_path) as peer_state:
        first = peer_state.process_number
        with pytest.raises(Refused, match="another process"), PeerState(tmp_path):
            raise AssertionError("two at once")
    with PeerState(tmp_path) as peer_state:
        assert peer_state.process_number > first


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"gossip": {}, "learned": null}', '{"gossip": 1, "learned": [1]}'])
def test_a_damaged_state_file_is_named(tmp_path: Path, text: str) -> None:
    with PeerState(tmp_path) as peer_state:
        (peer_state.folder / "machine.json").write_text(text)
        with pytest.raises(StorageFailed, match=r"machine\.json"):
            peer_state.load()


def test_blobs_that_are_awaited_are_not_swept_away(tmp_path: Path) -> None:
    with PeerState(tmp_path, audit=True) as peer_state:
        one, other, third = (peer_state.blobs.put({"model": toy_tree((n, 0.0, 0.0), 0)}) for n in (1.0, 2.0, 3.0))
        peer_state.holds.hold(other.digest)
        peer_state.record_update(toy_tree((0.0, 0.0, 0.0), 0), toy_tree((1.0, 0.5, 0.0), 4))
        peer_state.sweep([one])
        kept = peer_state.blobs.digests()
        assert {one.digest, other.digest} < set(kept)
        assert third.digest not in kept
        assert len(kept) == 3


def test_blobs_are_awaited_as_well_after_others_were_swept(tmp_path: Path) -> None:
    """Holders of the peer_state's list go on with the same one."""
    with PeerState(tmp_path) as peer_state:
        awaited = peer_state.holds
        refs = [peer_state.blobs.put({"model": toy_tree((n, 0.0, 0.0), 0)}) for n in (1.0, 2.0, 3.0)]
        for ref in refs[:2]:
            awaited.hold(ref.digest)
        awaited.release([refs[0].digest])
        peer_state.sweep([])
        awaited.hold(refs[1].digest)
        awaited.release([refs[1].digest])
        peer_state.sweep([])
        assert list(peer_state.blobs.digests()) == [refs[1].digest]
        late = peer_state.blobs.put({"model": toy_tree((4.0, 0.0, 0.0), 0)})
        awaited.hold(late.digest)
        peer_state.sweep([])
        assert set(peer_state.blobs.digests()) == {refs[1].digest, late.digest}
        awaited.release([refs[1].digest, late.digest])
        peer_state.sweep([])
        assert not peer_state.blobs.digests()


def test_conservation_sums_survive_a_restart(tmp_path: Path) -> None:
    state = {"slots": ["a" * 64, 1]}
    with PeerState(tmp_path, audit=True) as peer_state:
        state["slots"] = [(ref := peer_state.blobs.put({"model": toy_tree((1.0, 0.5, 0.0), 0)})).digest, ref.nbytes]
        peer_state.record_update(toy_tree((0.0, 0.0, 0.0), 0), toy_tree((1.0, 0.5, 0.0), 4))
        peer_state.save(state)
    with PeerState(tmp_path, audit=True) as peer_state:
        assert peer_state.load() == state
        peer_state.record_update(toy_tree((1.0, 0.5, 0.0), 0), toy_tree((1.25, 0.5, -2.0), 4))
        total = peer_state.learned_total()
        assert isinstance(total, Tree)
        assert total["w"].tolist() == [1.25, 0.5, -2.0]
        assert total["w"].dtype == "float64"
        assert doubles(total, total)["w"].tolist() == [0.0, 0.0, 0.0]


def test_another_model_than_the_charters_is_refused(tmp_path: Path) -> None:
    async def scene() -> None:
        peers = folders(tmp_path)
        other = Tree.of({"w": toy_tree((1.0, 2.0, 3.0), 0)["w"]})
        invite(tmp_path / "job.toml", other, [InvitedNode("a", "http://127.0.0.1:9")], tmp_path / "elsewhere")
        assert peers
        async with node(tmp_path / "elsewhere" / "a"):
            raise AssertionError("it has started")

    with pytest.raises(InvalidJob, match="another model than the charter"):
        asyncio.run(scene())


def test_a_restarted_peer_remembers_what_it_took_from_whom(tmp_path: Path) -> None:
    documents = read_documents(folders(tmp_path) / "a")
    path = tmp_path / "windows.json"
    verifier = load_verifier(path, documents)
    path.write_text(json.dumps(verifier.snapshot()))
    assert json.loads(path.read_text())["roster"]
    assert load_verifier(path, documents).snapshot() == verifier.snapshot()
    path.write_text("no")
    with pytest.raises(StorageFailed, match=r"windows\.json"):
        load_verifier(path, documents)
