"""`shoal peer init`, `key`, and `run` before it starts. (tests/peer runs peers.)"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shoal.cli.commands import peer, peer_join
from shoal.core.errors import InvalidJob, ShoalError
from shoal.peering.roster.invitation import read_token
from shoal.peering.state.peer_state import read_documents
from shoal.sim.hosts.toy_models import ToyLearner
from shoal_peer.peer_status import PeerSummary
from tests.cli.conftest import Shoal, envelope

JOB = """
name = "toys"
learner = "toy.py:learner"
[algorithm]
name = "fedavg"
[gossip]
local_rounds = 2
"""
TOY = "from shoal.sim.hosts.toy_models import ToyLearner\ndef learner(number=1):\n    return ToyLearner(number)\n"
KEY = "ed25519:" + "ab" * 32


@pytest.fixture
def job(place: Path) -> Path:
    (place / "toy.py").write_text(TOY)
    (place / "job.toml").write_text(JOB)
    return place / "job.toml"


def test_new_makes_a_folder_for_each(shoal: Shoal, place: Path, job: Path) -> None:
    said = shoal(
        "peer", "init", "job.toml", "--peer", "a=http://127.0.0.1:9001", "--peer", "b=http://127.0.0.1:9002,500"
    )
    assert said.exit_code == 0, said.output
    assert "shoal peer run toys-peers/b" in said.stdout
    found = sorted(path.name for path in (place / "toys-peers" / "a").iterdir())
    assert found == ["charter.json", "job.toml", "key.pem", "roster.json"]
    again = envelope(shoal("peer", "init", "job.toml", "--peer", "c=", "--json"))["data"]
    assert again == {"folder": "toys-peers", "roster": 2, "peers": ["a", "b", "c"]}


def test_new_refuses_a_learner_that_lacks_what_the_algorithm_needs(shoal: Shoal, place: Path, job: Path) -> None:
    job.write_text(JOB.replace("fedavg", "fedprox"))
    (place / "toy.py").write_text(f"{TOY}ToyLearner.applies_corrections = False\n")
    try:
        said = shoal("peer", "init", "job.toml", "--peer", "a=")
    finally:
        ToyLearner.applies_corrections = True
    assert "fedprox corrects every local gradient, and ToyLearner does not declare" in said.stderr
    assert not (place / "toys-peers").exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=http://h:1", ("a", "http://h:1", "", 0)),
        ("a=", ("a", "", "", 0)),
        ("a=http://h:1,500", ("a", "http://h:1", "", 500)),
        (f"a=http://h:1,{KEY},500", ("a", "http://h:1", KEY, 500)),
        (f"a=,{KEY}", ("a", "", KEY, 0)),
    ],
)
def test_a_peer_as_a_person_writes_it(text: str, expected: tuple[str, str, str, int]) -> None:
    found = peer.invited_of(text)
    assert (found.node, found.url, found.public_key, found.examples) == expected


@pytest.mark.parametrize("text", ["a", "=http://h", "A=http://h", "a=h:1", "a=http://h,x", "a=http://h,1,2"])
def test_what_names_no_peer_is_refused(text: str) -> None:
    with pytest.raises(ShoalError) as caught:
        peer.invited_of(text)
    assert caught.value.code.startswith("usage.")
    assert caught.value.hint


def test_a_key_is_made_once(shoal: Shoal, place: Path) -> None:
    one = shoal("peer", "key", "mine").stdout
    assert one.startswith("ed25519:")
    assert shoal("peer", "key", "mine").stdout == one
    assert (place / "mine" / "key.pem").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("listen", "url", "expected"),
    [
        (None, "http://127.0.0.1:9001", ("127.0.0.1", 9001)),
        (None, "http://10.0.0.1:9001", ("0.0.0.0", 9001)),
        (None, "", ("127.0.0.1", 0)),
        ("10.0.0.1:7", "http://10.0.0.2:9001", ("10.0.0.1", 7)),
        ("[::1]:7", "", ("::1", 7)),
    ],
)
def test_where_it_listens(listen: str | None, url: str, expected: tuple[str, int]) -> None:
    assert peer.where(listen, url) == expected


@pytest.mark.parametrize("listen", ["7", "host", "host:x", "host:70000"])
def test_where_nobody_can_listen(listen: str) -> None:
    with pytest.raises(ShoalError, match="no HOST:PORT"):
        peer.where(listen, "")


def test_what_is_missing_is_said(shoal: Shoal, place: Path, job: Path) -> None:
    said = shoal("peer", "run", "nowhere")
    assert said.exit_code == 2
    assert "no job.toml in nowhere" in said.output
    job.write_text(JOB.replace('learner = "toy.py:learner"\n', ""))
    said = shoal("peer", "init", "job.toml", "--peer", "a=")
    assert said.exit_code == 2
    assert "names no learner" in said.output


def test_an_algorithm_that_needs_a_server_is_refused(shoal: Shoal, place: Path, job: Path) -> None:
    job.write_text(JOB.replace('name = "fedavg"', 'name = "periodic"'))
    said = shoal("peer", "init", "job.toml", "--peer", "a=")
    assert said.exit_code == 2
    assert "peers have no server" in said.output


def test_at_its_end_a_peer_says_on_how_much_it_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """A peer that left before the others, or reached none, does not claim consensus."""
    own, drawn = ({"eval/accuracy": share, "eval/examples": 34.0} for share in (28 / 34, 24 / 34))
    for one, name in ((True, "accuracy, consensus"), (False, "accuracy, before consensus")):
        peer.report(PeerSummary("a", 12, True, True, own, drawn, {"a": 12}, {"sent": {}, "received": {}}, one))
        said = " ".join(capsys.readouterr().out.split())
        assert "accuracy, local 82.4 % of 34 examples that this peer has held back" in said
        assert f"{name} 70.6 % of 34 examples" in said


def test_where_others_are() -> None:
    assert peer.joined(["a=http://h:1/?x=y", "b=http://h:2"], {"a", "b"}) == {"a": "http://h:1/?x=y", "b": "http://h:2"}


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("http://h:1", "--join a=http://10.0.0.1:9001"),
        ("http://h:1/?a=b", "--join a=http://10.0.0.1:9001"),
        ("c=http://h:1", "it names a, b"),
    ],
)
def test_an_address_without_a_name_of_the_roster_is_refused(text: str, hint: str) -> None:
    with pytest.raises(ShoalError, match=r"--join ") as caught:
        peer.joined([text], {"a", "b"})
    assert hint in (caught.value.hint or "")


# Joining by one string


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, bool]]:
    """The folders of peers that would have run, and whether they admit newcomers."""
    taken: list[tuple[Path, bool]] = []

    def take_part(folder: Path, mine: object, net: object, end: object, *host: Any) -> int:
        taken.append((folder, bool(host)))
        for line in host[1] if host else ():
            peer_join.out.notice(line)
        return 0

    monkeypatch.setattr(peer_join, "take_part", take_part)
    return taken


def test_start_makes_a_job_and_prints_one_string(
    shoal: Shoal, place: Path, job: Path, parts: list[tuple[Path, bool]]
) -> None:
    said = shoal("peer", "start", "job.toml", "--name", "a", "--listen", "127.0.0.1:9001", "--uses", "2")
    assert said.exit_code == 0, said.output
    assert "valid for 2 machines" in said.output
    token = read_token(said.output.split("shoal peer join ")[1].split()[0])
    assert (token.job, token.urls) == ("toys", ("http://127.0.0.1:9001",))
    again = shoal("peer", "start", "job.toml", "--name", "a")
    assert again.exit_code == 0
    assert parts == [(Path("toys-peers/a"), True)] * 2
    assert read_documents(place / "toys-peers" / "a").roster.version == 1
    job.write_text(JOB + "convergence_tol = 0.01\n")
    assert "not the job in toys-peers" in shoal("peer", "start", "job.toml", "--name", "a").output
    more = envelope(shoal("--json", "peer", "invite", "toys-peers", "--at", "http://10.0.0.1:7"))["data"]
    assert read_token(more["invitation"]).urls == ("http://10.0.0.1:7",)


@pytest.mark.usefixtures("sockets")
def test_join_says_what_is_wrong(shoal: Shoal, place: Path, job: Path, parts: list[tuple[Path, bool]]) -> None:
    said = shoal("peer", "join", "shoal-join-x")
    assert said.exit_code == 2
    assert "copy the whole string" in said.output
    shoal("peer", "start", "job.toml", "--name", "a", "--listen", "127.0.0.1:9")
    token = envelope(shoal("--json", "peer", "invite", "toys-peers"))["data"]["invitation"]
    said = shoal("peer", "join", token)
    assert said.exit_code == 3
    assert "no peer of the invitation answers" in said.output
    assert len(parts) == 1


def test_code_that_came_over_the_network_is_not_run(tmp_path: Path) -> None:
    assert peer.own_learner(tmp_path, "os:system", None) == ""  # the operator has carried this folder here
    (tmp_path / peer.JOINED).write_text("{}")
    for named in ("os:system", "shoal.learn.loading:load_learner", ""):
        with pytest.raises(InvalidJob, match="over the network"):
            peer.own_learner(tmp_path, named, None)
    assert peer.own_learner(tmp_path, "os:system", "mine.py:learner") == "mine.py:learner"
    assert peer.own_learner(tmp_path, "shoal.learn.digits:learner", None) == ""


@pytest.mark.parametrize(
    ("listen", "known", "expected"),
    [
        ("none", None, ()),
        (None, (), ()),
        ("10.0.0.9:7", None, ("http://10.0.0.9:7",)),
        ("[::1]:7", None, ("http://[::1]:7",)),
        (None, ("http://10.0.0.9:7",), ("http://10.0.0.9:7",)),
    ],
)
def test_where_others_call_a_peer(listen: str | None, known: tuple[str, ...] | None, expected: tuple[str, ...]) -> None:
    assert peer_join.addresses(listen, known) == expected
