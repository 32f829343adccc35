"""What an operator makes, and what a peer makes of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from shoal.core.errors import InvalidJob, NotAllowed, Refused, StorageFailed
from shoal.core.tree import Tree
from shoal.sim.toys import ToyLearner, toy_tree
from shoal.trust.keys import load_or_make
from shoal_peer.folder import PAPERS, Desk, doubles, read_papers
from shoal_peer.invite import Invited, invite
from tests.peer.stage import JOB, folders, node

MODEL = ToyLearner(1).init(3)


def test_each_peer_finds_itself_and_the_others(tmp_path: Path) -> None:
    peers = folders(tmp_path)
    for name in "abc":
        papers = read_papers(peers / name)
        assert papers.me.node == name
        assert [peer.node for peer in papers.others] == sorted(set("abc") - {name})
        assert (peers / name / "key.pem").stat().st_mode & 0o077 == 0
    assert not (peers / "a" / "operator.pem").exists()


def test_a_second_call_admits_more_and_keeps_keys(tmp_path: Path) -> None:
    peers = folders(tmp_path, "ab")
    before = read_papers(peers / "a")
    again = [Invited("b", "http://10.0.0.9:1"), Invited("c", "")]
    roster = invite(tmp_path / "job.toml", MODEL, again, peers)
    assert roster.version == 2
    after = read_papers(peers / "a")
    assert [peer.node for peer in after.roster.peers] == ["a", "b", "c"]
    assert after.roster.peers[1].urls == ("http://10.0.0.9:1",)
    assert after.me == before.me
    assert after.charter == before.charter
    assert not after.roster.peers[2].inbound


def test_a_key_may_be_the_nodes_own(tmp_path: Path) -> None:
    peers = folders(tmp_path, "ab")
    own = load_or_make(tmp_path / "own.pem")
    invite(tmp_path / "job.toml", MODEL, [Invited("c", "", own.pub)], peers)
    assert not (peers / "c" / "key.pem").exists()
    with pytest.raises(InvalidJob, match=r"no key\.pem"):
        read_papers(peers / "c")
    (tmp_path / "own.pem").rename(peers / "c" / "key.pem")
    assert read_papers(peers / "c").me.pub == own.pub


def test_another_job_needs_another_folder(tmp_path: Path) -> None:
    peers = folders(tmp_path, "ab")
    job = tmp_path / "job.toml"
    job.write_text(job.read_text().replace("seed = 3", "seed = 4"))
    with pytest.raises(InvalidJob, match="another form"):
        invite(job, MODEL, [Invited("c", "")], peers)


@pytest.mark.parametrize("name", ["fedadam", "fedavgm", "scaffold", "admm", "lbfgs", "codistillation"])
def test_a_job_that_needs_a_server_is_refused(name: str, tmp_path: Path) -> None:
    """Each peer would keep for itself what the method keeps once, at its server."""
    job = tmp_path / "job.toml"
    job.write_text(f'name = "toys"\nlearner = "nowhere.py:learner"\n[algorithm]\nname = "{name}"\n')
    with pytest.raises(InvalidJob, match=f"{name} keeps more than the model at a server") as refused:
        invite(job, MODEL, [Invited("a", ""), Invited("b", "")], tmp_path / "peers")
    assert refused.value.hint == "choose one of fedavg, fedprox, fedsgd"


@pytest.mark.parametrize("name", PAPERS)
def test_a_missing_paper_is_named(tmp_path: Path, name: str) -> None:
    peers = folders(tmp_path)
    (peers / "a" / name).unlink()
    with pytest.raises(InvalidJob, match=name.replace(".", r"\.")):
        read_papers(peers / "a")


def test_papers_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    peers, others = folders(tmp_path), folders(tmp_path / "other")
    job, roster = peers / "a" / "job.toml", (peers / "a" / "roster.json").read_bytes()
    job.write_text(JOB.format(rounds=5, drain=1, min_peers=1, patience_s=1, more=""))
    with pytest.raises(InvalidJob, match="not the job of the charter"):
        read_papers(peers / "a")
    (peers / "b" / "roster.json").write_bytes((others / "b" / "roster.json").read_bytes())
    with pytest.raises(NotAllowed, match="nobody whose word counts"):
        read_papers(peers / "b")
    with pytest.raises(NotAllowed, match="nobody whose word counts"):
        read_papers(others / "b", peers / "c" / "roster.json")
    assert roster
    (peers / "c" / "key.pem").unlink()
    load_or_make(peers / "c" / "key.pem")
    with pytest.raises(InvalidJob, match="does not name the key"):
        read_papers(peers / "c")


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with Desk(tmp_path) as desk:
        first = desk.boot
        with pytest.raises(Refused, match="another process"), Desk(tmp_path):
            raise AssertionError("two at once")
    with Desk(tmp_path) as desk:
        assert desk.boot > first


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"gossip": {}, "learned": null}', '{"gossip": 1, "learned": [1]}'])
def test_a_damaged_standing_is_named(tmp_path: Path, text: str) -> None:
    with Desk(tmp_path) as desk:
        (desk.folder / "standing.json").write_text(text)
        with pytest.raises(StorageFailed, match=r"standing\.json"):
            desk.load()


def test_bodies_that_are_awaited_are_not_swept_away(tmp_path: Path) -> None:
    with Desk(tmp_path, books=True) as desk:
        one, other, third = (desk.bodies.put({"model": toy_tree((n, 0.0, 0.0), 0)}) for n in (1.0, 2.0, 3.0))
        desk.awaited.hold(other.digest)
        desk.book(toy_tree((0.0, 0.0, 0.0), 0), toy_tree((1.0, 0.5, 0.0), 4))
        desk.sweep([one])
        kept = desk.bodies.digests()
        assert {one.digest, other.digest} < set(kept)
        assert third.digest not in kept
        assert len(kept) == 3


def test_bodies_are_awaited_as_well_after_others_were_swept(tmp_path: Path) -> None:
    """Whoever holds the desk's list goes on with the same one."""
    with Desk(tmp_path) as desk:
        awaited = desk.awaited
        refs = [desk.bodies.put({"model": toy_tree((n, 0.0, 0.0), 0)}) for n in (1.0, 2.0, 3.0)]
        for ref in refs[:2]:
            awaited.hold(ref.digest)
        awaited.release([refs[0].digest])
        desk.sweep([])
        awaited.hold(refs[1].digest)
        awaited.release([refs[1].digest])
        desk.sweep([])
        assert list(desk.bodies.digests()) == [refs[1].digest]
        late = desk.bodies.put({"model": toy_tree((4.0, 0.0, 0.0), 0)})
        awaited.hold(late.digest)
        desk.sweep([])
        assert set(desk.bodies.digests()) == {refs[1].digest, late.digest}
        awaited.release([refs[1].digest, late.digest])
        desk.sweep([])
        assert not desk.bodies.digests()


def test_the_books_outlive_the_process(tmp_path: Path) -> None:
    state = {"slots": ["a" * 64, 1]}
    with Desk(tmp_path, books=True) as desk:
        state["slots"] = [(ref := desk.bodies.put({"model": toy_tree((1.0, 0.5, 0.0), 0)})).digest, ref.nbytes]
        desk.book(toy_tree((0.0, 0.0, 0.0), 0), toy_tree((1.0, 0.5, 0.0), 4))
        desk.keep(state)
    with Desk(tmp_path, books=True) as desk:
        assert desk.load() == state
        desk.book(toy_tree((1.0, 0.5, 0.0), 0), toy_tree((1.25, 0.5, -2.0), 4))
        total = desk.learned()
        assert isinstance(total, Tree)
        assert total["w"].tolist() == [1.25, 0.5, -2.0]
        assert total["w"].dtype == "float64"
        assert doubles(total, total)["w"].tolist() == [0.0, 0.0, 0.0]


def test_another_model_than_the_charters_is_refused(tmp_path: Path) -> None:
    async def scene() -> None:
        peers = folders(tmp_path)
        other = Tree.of({"w": toy_tree((1.0, 2.0, 3.0), 0)["w"]})
        invite(tmp_path / "job.toml", other, [Invited("a", "http://127.0.0.1:9")], tmp_path / "elsewhere")
        assert peers
        async with node(tmp_path / "elsewhere" / "a"):
            raise AssertionError("it has started")

    with pytest.raises(InvalidJob, match="another model than the charter"):
        asyncio.run(scene())


def test_a_restarted_peer_remembers_what_it_took_from_whom(tmp_path: Path) -> None:
    with Desk(folders(tmp_path) / "a") as desk:
        gate = desk.gatekeeper(read_papers(tmp_path / "peers" / "a"))
        desk.keep_gate(gate.snapshot())
        assert json.loads((desk.folder / "gate.json").read_text())["roster"]
        assert desk.gatekeeper(read_papers(tmp_path / "peers" / "a")).snapshot() == gate.snapshot()
        (desk.folder / "gate.json").write_text("no")
        with pytest.raises(StorageFailed, match=r"gate\.json"):
            desk.gatekeeper(read_papers(tmp_path / "peers" / "a"))
