"""Trust documents of nodes, the proofs that they need, and the status that they report as peers."""

from __future__ import annotations

import stat
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import create_engine, text

from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.errors import NotAllowed, Refused
from shoal.runtime.http.node_client import JobDocuments, JobLease, NodeClient, NodeContact
from shoal.trust.documents import JoinCert, Roster, RosterEntry, config_sha, open_charter, schema_sha, verify_document
from shoal.trust.keys import load_or_create
from shoal.trust.request_verifier import RequestVerifier
from shoal_coordinator.peers.trust_documents import CERTIFICATE_S
from shoal_coordinator.telemetry.traffic import GOSSIP_BYTES_MAX
from tests.support.coordinator import Inside, Server, inside
from tests.support.peers import (
    GOSSIP,
    KEYS,
    OPEN,
    documents,
    hello,
    join_as_peers,
    peer_info,
    poll,
    send_status,
    status_report,
)
from tests.support.scenario import Stage, by_hand, problem, set_up
from tests.support.waiting import until


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Inside]:
    with inside(tmp_path / "data", **OPEN) as running:
        yield running


@pytest.fixture
def stage(coordinator: Inside) -> Iterator[Stage]:
    made = set_up(coordinator, gossip=GOSSIP)
    yield made
    made.close()


# Documents


def test_a_new_node_gets_a_join_certificate(stage: Stage) -> None:
    """It has shown its key, and never polled: it is in no roster."""
    join_as_peers(stage, "n0")
    charter, _ = documents(stage)
    roster = stage.send("n0", "GET", "/jobs/main/trust").json()["roster"].encode()
    assert stage.send("n1", "GET", "/jobs/main/trust").json()["certificate"] == "", "it has shown no key"
    assert hello(stage, "n1", peer_info("n1")).status_code == 200
    text = stage.send("n1", "GET", "/jobs/main/trust").json()["certificate"].encode()
    cert = verify_document(text, JoinCert, charter)
    assert (cert.job, cert.node, cert.public_key) == ("main", "n1", KEYS["n1"].public_key)
    now = time.time()
    assert 0 < cert.not_after - now <= CERTIFICATE_S
    verifier = RequestVerifier(charter, KEYS["n0"].peer_id)
    verifier.update_roster(roster)
    assert "n1" not in {peer.node for peer in verifier.members()}
    assert verifier.introduce(text, int(now)) == "n1"


def test_a_revoked_key_is_refused_even_if_no_roster_had_it(stage: Stage) -> None:
    join_as_peers(stage, "n0")
    documents(stage)
    assert hello(stage, "n1", peer_info("n1")).status_code == 200
    text = stage.send("n1", "GET", "/jobs/main/trust").json()["certificate"].encode()
    assert stage.running.request("DELETE", "/api/v1/nodes/n1").status_code == 204
    charter, roster = documents(stage)
    assert roster.revoked_peer_ids == (KEYS["n1"].peer_id,)
    verifier = RequestVerifier(charter, KEYS["n0"].peer_id)
    verifier.update_roster(stage.send("n0", "GET", "/jobs/main/trust").json()["roster"].encode())
    with pytest.raises(NotAllowed, match="revoked"):
        verifier.introduce(text, int(time.time()))


def test_trust_documents_hold_the_keys_and_addresses_of_nodes(stage: Stage) -> None:
    join_as_peers(stage, "n0", "n1")
    assert hello(stage, "n2", peer_info("n2", port=0)).status_code == 200
    poll(stage, "n2")
    charter, roster = documents(stage)
    key = load_or_create(stage.running.folder / "coordinator.pem")
    assert stat.S_IMODE((stage.running.folder / "coordinator.pem").stat().st_mode) == 0o600
    assert charter.job == "main"
    assert charter.coordinator_public_key == charter.operator_public_key == key.public_key
    assert charter.config_sha == config_sha(stage.send("n0", "GET", "/jobs/main").json()["spec"])
    assert charter.schema_sha == schema_sha(tree_slot(stage.running.runner("main").hub.store.slots, "model"))
    assert roster.revoked_peer_ids == ()
    assert roster.peers == tuple(
        RosterEntry(name, KEYS[name].peer_id, KEYS[name].public_key, urls, bool(urls), 0)
        for name, urls in (("n0", ("http://10.0.0.0:9001",)), ("n1", ("http://10.0.0.1:9001",)), ("n2", ()))
    )


def test_trust_documents_are_fetched_only_when_they_changed(stage: Stage) -> None:
    join_as_peers(stage, "n0")
    _, roster = documents(stage)
    same = {"If-None-Match": f'"{roster.version}"'}
    again = stage.send("n0", "GET", "/jobs/main/trust", headers=same)
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", same["If-None-Match"])
    join_as_peers(stage, "n1")
    assert stage.send("n0", "GET", "/jobs/main/trust", headers=same).status_code == 200


def test_a_job_without_gossip_has_no_trust_documents(coordinator: Inside) -> None:
    stage = set_up(coordinator, "plain")
    hello(stage, "n0", peer_info("n0"))
    assert poll(stage, "n0") == ""
    problem(stage.send("n0", "GET", "/jobs/plain/trust"), 404, "trust.none")
    problem(stage.send("n0", "GET", "/jobs/nothing/trust"), 404, "job.unknown")
    coordinator.begin("early", nodes=2, gossip=GOSSIP)
    problem(stage.send("n0", "GET", "/jobs/early/trust"), 409, "trust.early")
    assert not (coordinator.folder / "coordinator.pem").exists(), "no key before there is need of one"
    coordinator.post("/jobs/early/stop")
    problem(stage.send("n0", "GET", "/jobs/early/trust"), 409, "job.ended")
    problem(coordinator.request("GET", "/api/v1/jobs/plain/trust"), 403, "auth.forbidden")
    stage.close()


CHANGES: dict[str, Callable[[Stage], Any]] = {
    "a key": lambda stage: hello(stage, "n1", peer_info("n1", key="other")),
    "an address": lambda stage: hello(stage, "n1", peer_info("n1", port=9002)),
    "not reachable": lambda stage: hello(stage, "n1", peer_info("n1", port=0)),
    "another peer": lambda stage: join_as_peers(stage, "n2"),
    "no peer any more": lambda stage: hello(stage, "n1", None),
    "other jobs only": lambda stage: poll(stage, "n1", job="elsewhere"),
    "removed": lambda stage: stage.running.request("DELETE", "/api/v1/nodes/n1"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_changes_makes_a_new_roster(stage: Stage, what: str) -> None:
    join_as_peers(stage, "n0", "n1")
    charter, before = documents(stage)
    CHANGES[what](stage)
    same, after = documents(stage)
    assert same == charter
    assert after.version == before.version + 1
    there = {peer.node: peer for peer in after.peers}
    n1 = replace(before.peers[1])
    expected = {
        "a key": replace(n1, public_key=KEYS["other"].public_key, peer_id=KEYS["other"].peer_id),
        "an address": replace(n1, urls=("http://10.0.0.1:9002",)),
        "not reachable": replace(n1, urls=(), is_reachable=False),
        "another peer": n1,
    }
    assert there.get("n1") == expected.get(what)
    assert ("n2" in there) == (what == "another peer")
    assert after.revoked_peer_ids == ((KEYS["n1"].peer_id,) if what == "removed" else ())
    assert documents(stage) == (same, after), "and nothing more happens"


def test_a_roster_is_renewed_without_anybody_asking(stage: Stage) -> None:
    """The lease names the new one, so that peers fetch it."""
    join_as_peers(stage, "n0")
    until("a lease", lambda: poll(stage, "n0"))
    term, first = stage.running.runner("main").hub.tasks.term, documents(stage)[1].version
    until("the roster that it is in", lambda: poll(stage, "n0") == f"main={term}.{first}")
    join_as_peers(stage, "n1")
    until("the next roster", lambda: poll(stage, "n0") == f"main={term}.{first + 1}")


def test_a_node_may_claim_twice_what_it_reported_last(stage: Stage) -> None:
    join_as_peers(stage, "n0", "n1")
    assert stage.report(node="n0", weight=5.3).status_code == 200
    most = {peer.node: peer.examples for peer in documents(stage)[1].peers}
    assert most == {"n0": 11, "n1": 0}
    doing = stage.running.coordinator.nodes.presence.activity["main", "n0"]
    version = documents(stage)[1].version
    doing.weight = 4.0
    assert documents(stage)[1].version == version, "less is within what it may claim"
    doing.weight = 11.5
    assert {peer.node: peer.examples for peer in documents(stage)[1].peers} == {"n0": 23, "n1": 0}


def test_where_peers_pass_mass_on_there_is_no_greatest_weight(coordinator: Inside) -> None:
    stage = set_up(coordinator, gossip={"allowed": True, "mixing": {"name": "push_sum"}})
    join_as_peers(stage, "n0")
    assert stage.report(node="n0", weight=5.0).status_code == 200
    assert [peer.examples for peer in documents(stage)[1].peers] == [0]
    stage.close()


# Keys that may not be shown

WRONG: dict[str, dict[str, Any]] = {
    "no key": {"urls": [], "is_reachable": False},
    "a short key": {**peer_info("n0"), "public_key": "ed25519:ab"},
    "another kind of key": {**peer_info("n0"), "public_key": "rsa:" + "ab" * 32},
    "capitals": {**peer_info("n0"), "public_key": "ed25519:" + "AB" * 32},
    "no such scheme": {**peer_info("n0"), "urls": ["ftp://10.0.0.1"]},
    "a line break": {**peer_info("n0"), "urls": ["http://10.0.0.1/\r\nHost: x"]},
    "a long address": {**peer_info("n0"), "urls": ["http://" + "a" * 300]},
    "five addresses": {**peer_info("n0"), "urls": [f"http://10.0.0.{i}" for i in range(5)]},
    "called at no address": {**peer_info("n0"), "urls": []},
    "not called at an address": {**peer_info("n0"), "is_reachable": False},
    "no object": [],  # type: ignore[dict-item]
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_peer_is_refused(stage: Stage, what: str) -> None:
    join_as_peers(stage, "n0")
    _, before = documents(stage)
    problem(hello(stage, "n0", WRONG[what]), 422, "request.invalid")
    assert documents(stage)[1] == before


def test_a_key_belongs_to_one_node(stage: Stage) -> None:
    join_as_peers(stage, "n0", "n1")
    before = documents(stage)
    problem(hello(stage, "n1", peer_info("n1", key="n0")), 409, "peer.key-taken")
    assert documents(stage) == before


def test_a_revoked_key_never_comes_back(stage: Stage) -> None:
    join_as_peers(stage, "n0", "n1")
    documents(stage)
    stage.running.request("DELETE", "/api/v1/nodes/n1")
    documents(stage)
    stage.nodes[1].client.close()
    again = by_hand(stage.running, "n1", {"main": 10})
    stage.nodes = [node for node in stage.nodes if node.node != "n1"] + [again]
    problem(hello(stage, "n1", peer_info("n1")), 409, "peer.revoked")
    assert "n1" not in stage.running.coordinator.peers.trust_documents.peers("main")
    assert hello(stage, "n1", peer_info("n1", key="other")).status_code == 200
    poll(stage, "n1")
    _, roster = documents(stage)
    assert [peer.public_key for peer in roster.peers] == [KEYS["n0"].public_key, KEYS["other"].public_key]
    assert roster.revoked_peer_ids == (KEYS["n1"].peer_id,)


# Across deaths


def test_trust_documents_survive_a_restart(server: Callable[..., Server]) -> None:
    running = server(**OPEN).start()
    stage = set_up(running, gossip=GOSSIP)  # type: ignore[arg-type]
    join_as_peers(stage, "n0", "n1")
    before = stage.send("n0", "GET", "/jobs/main/trust").json()
    running.kill()
    running.start()
    after = stage.send("n1", "GET", "/jobs/main/trust").json()
    assert {**after, "certificate": ""} == {**before, "certificate": ""}, "to the letter"
    until("the lease of the next life", lambda: poll(stage, "n0") == f"main=2.{before['version']}")
    running.kill()
    running.start()
    assert running.request("DELETE", "/api/v1/nodes/n1").status_code == 204
    running.kill()
    running.start()
    _, roster = documents(stage)
    assert ([peer.node for peer in roster.peers], roster.revoked_peer_ids) == (["n0"], (KEYS["n1"].peer_id,))
    assert roster.version == before["version"] + 1
    stage.close()


def ask_until_killed(stage: Stage) -> None:
    """Poll as n1 until no coordinator answers any more."""
    with pytest.raises(httpx.TransportError):
        until("the death", lambda: poll(stage, "n1") and None)


def test_a_roster_survives_a_crash_before_it_was_sent(server: Callable[..., Server]) -> None:
    """Killed when it is written and before it is handed out: the next life hands out the same."""
    running = server(**OPEN).start()
    stage = set_up(running, gossip=GOSSIP)  # type: ignore[arg-type]
    join_as_peers(stage, "n0")
    first = documents(stage)[1]
    running.kill()
    running.start(crash="trust-documents.stored")
    assert hello(stage, "n1", peer_info("n1")).status_code == 200
    ask_until_killed(stage)
    until("the end", lambda: running.ended() is not None)
    running.start()
    kept = until("the roster with n1", lambda: len(documents(stage)[1].peers) == 2 and documents(stage)[1])
    assert kept.version == first.version + 1
    stage.close()


def test_another_key_of_the_coordinator_makes_another_charter(tmp_path: Path) -> None:
    """Lost keys, and releases that show more of a job, must not end gossip for ever."""
    with inside(tmp_path / "data", **OPEN) as running:
        stage = set_up(running, gossip=GOSSIP)
        join_as_peers(stage, "n0")
        charter, roster = documents(stage)
        credentials = {node.node: node.client.headers["Authorization"] for node in stage.nodes}
        stage.close()
    (tmp_path / "data" / "coordinator.pem").unlink()
    with inside(tmp_path / "data", **OPEN) as running:
        headers = {"Authorization": credentials["n0"]}
        with closing(httpx.Client(headers=headers, trust_env=False)) as client:

            def lease() -> str:
                found = client.get(f"{running.url}/api/v1/work", params={"wait_s": 0})
                return str(found.headers.get("shoal-term", ""))

            until("word of new papers", lambda: lease().endswith(f".{roster.version + 1}"))
            found = client.get(f"{running.url}/api/v1/jobs/main/trust").json()
        other = open_charter(found["charter"].encode())
        assert other.coordinator_public_key != charter.coordinator_public_key
        assert verify_document(found["roster"].encode(), Roster, other).peers == roster.peers


def test_unreadable_trust_documents_are_signed_anew(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with inside(folder, **OPEN) as running:
        stage = set_up(running, gossip=GOSSIP)
        join_as_peers(stage, "n0")
        _, roster = documents(stage)
        credential = stage.nodes[0].client.headers["Authorization"]
        stage.close()
    engine = create_engine(f"sqlite:///{folder / 'shoal.db'}")
    with engine.begin() as connection:
        connection.execute(text("UPDATE trust_documents SET roster = 'garbage'"))
    engine.dispose()
    with inside(folder, **OPEN) as running, httpx.Client(headers={"Authorization": credential}) as client:
        client.get(f"{running.url}/api/v1/work", params={"wait_s": 0})
        found = client.get(f"{running.url}/api/v1/jobs/main/trust").json()
        assert found["version"] == roster.version + 1
        assert (
            verify_document(found["roster"].encode(), Roster, open_charter(found["charter"].encode())).peers
            == roster.peers
        )


# Over the client's link


def test_the_client_reads_all_of_it(stage: Stage) -> None:
    client = NodeClient(stage.running.url, credential=stage.nodes[0].client.headers["Authorization"].split()[1])
    with client:
        assert client.hello({}, NodeContact(KEYS["n0"].public_key, ("http://10.0.0.0:9001",), True)).name == "n0"
        leased = partial(client.poll_work, 0.0, {"main": (9, 9)})
        until("a lease", lambda: leased().leases)
        found = client.trust_documents("main")
        assert isinstance(found, JobDocuments)
        roster = verify_document(found.roster, Roster, open_charter(found.charter))
        assert [peer.node for peer in roster.peers] == ["n0"]
        assert roster.version == found.version  # 1, or 2 where a tick came before the hello
        assert leased().leases == (JobLease("main", 1, found.version),)
        assert client.trust_documents("main", found.version) is None
        client.report_peer_status("main", status_report())
        assert client.ping("main", 0).term == 1
        assert client.ping("main", 7).term == 8
        assert client.join("main", None).job == "main"
        stage.running.post("/jobs/main/stop")
        with pytest.raises(Refused) as error:
            client.ping("main", 8)
        assert error.value.code == "job.over"


# Status of peers


def gossip_bytes(running: Any) -> dict[tuple[str, str], int]:
    """Return the counted bytes of gossip, by node and direction."""
    rows = running.get("/jobs/main/traffic", by=["node", "kind"])["rows"]
    return {(row["node"], row["direction"]): row["bytes"] for row in rows if row["kind"] == "gossip"}


def test_bytes_that_nodes_report_are_counted_once(stage: Stage) -> None:
    join_as_peers(stage, "n0", "n1")
    documents(stage)
    before = stage.running.job("main")["up_bytes"]
    edge = status_report()["peers"]["n1"]
    for told in (
        status_report(),
        status_report(),
        status_report(peers={"n1": {**edge, "sent": 1500}}),
        status_report(),
    ):
        assert send_status(stage, **told).status_code == 204
    assert gossip_bytes(stage.running) == {("n0", "up"): 1500, ("n0", "down"): 900}
    assert send_status(stage, **status_report(process_number=2)).status_code == 204, "a new process counts from nothing"
    late = status_report(process_number=1, peers={"n1": {**edge, "sent": 9000}})
    assert send_status(stage, **late).status_code == 204, "and that is past"
    assert gossip_bytes(stage.running) == {("n0", "up"): 2500, ("n0", "down"): 1800}
    assert send_status(stage, "n1", **status_report()).status_code == 204
    assert stage.running.job("main")["up_bytes"] >= before + 3500, "in all sums"
    found = {row["name"]: row for row in stage.running.get("/jobs/main/nodes")["nodes"]}
    assert found["n1"]["up_bytes"] >= 1000


def test_counted_bytes_survive_a_crash(server: Callable[..., Server]) -> None:
    running = server(**OPEN).start()
    stage = set_up(running, gossip=GOSSIP)  # type: ignore[arg-type]
    join_as_peers(stage, "n0")
    documents(stage)
    assert send_status(stage, **status_report()).status_code == 204
    assert gossip_bytes(running) == {("n0", "up"): 1000, ("n0", "down"): 900}
    running.kill()
    running.start()
    assert send_status(stage, **status_report()).status_code == 204
    assert gossip_bytes(running) == {("n0", "up"): 1000, ("n0", "down"): 900}
    assert hello(stage, "n0", peer_info("n0", key="other")).status_code == 200
    poll(stage, "n0")
    documents(stage)
    assert send_status(stage, **status_report()).status_code == 204, "a new folder counts its starts from one"
    assert gossip_bytes(running) == {("n0", "up"): 2000, ("n0", "down"): 1800}
    stage.close()


def check_sums(running: Any) -> None:
    """The job's sums count each transfer once, at its sender."""
    found = running.get("/jobs/main/traffic", by=["kind"])
    sums = {(row["kind"], row["direction"]): row["bytes"] for row in found["rows"]}
    twice = sums.pop(("gossip", "down"))
    assert found["total"] == {
        way: sum(count for (_, direction), count in sums.items() if direction == way) for way in ("up", "down")
    }
    assert found["total"]["down"] <= running.job("main")["down_bytes"] < twice, "nor does its view count it"


def test_what_nodes_have_sent_each_other_counts_once(server: Callable[..., Server]) -> None:
    running = server(**OPEN).start()
    stage = set_up(running, gossip=GOSSIP)  # type: ignore[arg-type]
    join_as_peers(stage, "n0", "n1")
    documents(stage)
    edge = {**status_report()["peers"]["n1"], "received": 10**9}
    assert send_status(stage, **status_report(peers={"n1": edge})).status_code == 204
    check_sums(running)
    running.kill()
    running.start()
    check_sums(running)
    stage.close()


MALFORMED: dict[str, dict[str, Any]] = {
    "no process number": {"process_number": 0},
    "no such state": {"state": "away"},
    "a negative term": {"term": -1},
    "a weight below zero": {"weight": -1.0},
    "half a model_projection": {"model_projection": [0.0] * 16},
    "a long model_projection": {"model_projection": [0.0] * 33},
    "too large a number": {"model_projection": [1e200] * 32},
    "no name": {"rounds_by_peer": {"N 0": 3}},
    "no code": {"refused": {"<script>": 3}},
    "many codes": {"refused": {f"code.{i}": 1 for i in range(257)}},
    "no such liveness": {"peers": {"n1": {"state": "ill"}}},
    "negative bytes": {"peers": {"n1": {"state": "alive", "sent": -5}}},
    "no bytes": {"peers": {"n1": {"state": "alive", "sent": "many"}}},
}


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed_status_reports_are_not_counted(stage: Stage, what: str) -> None:
    join_as_peers(stage, "n0")
    documents(stage)
    problem(send_status(stage, **status_report(**MALFORMED[what])), 422, "request.invalid")
    assert gossip_bytes(stage.running) == {}
    assert stage.running.coordinator.peers.statuses.statuses("main") == {}


def test_numbers_that_are_not_finite_are_refused(stage: Stage) -> None:
    join_as_peers(stage, "n0")
    documents(stage)
    for number in ("NaN", "Infinity", "1e999"):
        content = '{"process_number":1,"state":"gossip","term":0,"local_rounds":0,"weight":' + number + "}"
        headers = {"Content-Type": "application/json"}
        problem(
            stage.send("n0", "POST", "/jobs/main/peer-status", content=content, headers=headers), 422, "request.invalid"
        )
    assert stage.running.coordinator.peers.statuses.statuses("main") == {}


def test_implausibly_many_bytes_are_not_counted(stage: Stage) -> None:
    """Else sums would grow beyond the database's whole numbers, and no byte could be booked any more."""
    join_as_peers(stage, "n0")
    documents(stage)
    edge = {"state": "alive", "exchanges": 1, "sent": GOSSIP_BYTES_MAX - 10, "received": 0}
    assert send_status(stage, **status_report(peers={"n1": edge})).status_code == 204
    more = status_report(process_number=2, peers={"n1": {**edge, "sent": 11}})
    problem(send_status(stage, **more), 422, "peering.bytes")
    assert gossip_bytes(stage.running) == {("n0", "up"): GOSSIP_BYTES_MAX - 10, ("n0", "down"): 0}


def test_only_peers_may_report_their_status(stage: Stage) -> None:
    problem(send_status(stage, **status_report()), 409, "peering.stranger")
    problem(stage.send("n0", "POST", "/jobs/nothing/peer-status", json=status_report()), 404, "job.unknown")


def test_an_overlong_status_report_is_not_read(stage: Stage) -> None:
    join_as_peers(stage, "n0")
    documents(stage)
    long = status_report(rounds_by_peer={f"n{i}": 2**50 for i in range(20_000)})
    problem(send_status(stage, **long), 413, "body.too-large")
