"""Nodes show certificates of their own, over real TLS, where the coordinator asks for them."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import ValidationError

from shoal.core.cluster.leader_lease import RemoteLeader
from shoal.core.errors import NotAllowed, ShoalError, Unreachable
from shoal.runtime.http.client import Link
from shoal_coordinator.cluster import reverse_proxy
from shoal_coordinator.http.client_certificates import CERTIFIED_KEY, tls_options
from shoal_coordinator.settings import Settings
from shoal_edge_client.agent import Agent
from shoal_edge_client.settings import EdgeSettings
from tests.support.coordinator import OPERATOR, Inside
from tests.support.learners import VectorLearner
from tests.support.waiting import until

DAY = dt.timedelta(days=1)
AS_NODE = {"protocols": [1], "info": {}}


class Authority:
    """Issues certificates into a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder, self._key = folder, ec.generate_private_key(ec.SECP256R1())
        self.file = self._write("authority.pem", self._signed("authority", self._key, [], ca=True))

    def _signed(self, subject: str, key: Any, names: list[x509.GeneralName], *, ca: bool = False) -> bytes:
        now = dt.datetime.now(dt.UTC)
        own, ours = (x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)]) for text in (subject, "authority"))
        made = x509.CertificateBuilder(ours, own, key.public_key(), x509.random_serial_number())
        made = made.not_valid_before(now - DAY).not_valid_after(now + DAY)
        made = made.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        if names:
            made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def _write(self, name: str, data: bytes) -> Path:
        path = self._folder / name
        path.write_bytes(data)
        return path

    def issue(self, subject: str, *names: str, address: str = "") -> tuple[Path, Path]:
        """A certificate for a common name, DNS names and an address, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        told: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
        told += [x509.IPAddress(ipaddress.ip_address(address))] if address else []
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        chain = self._write(f"{subject}-{len(names)}.pem", self._signed(subject, key, told))
        return chain, self._write(f"{subject}-{len(names)}.key", key.private_bytes(*form))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority") / "one")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Inside]:
    cert, key = authority.issue("coordinator", address="127.0.0.1")
    tls = {"tls_cert": str(cert), "tls_key": str(key), "tls_client_ca": str(authority.file)}
    made = Inside(tmp_path_factory.mktemp("certified") / "data", **tls).start()
    made._client.close()
    made._client = asking(authority, None, OPERATOR)
    yield made
    made.stop()


def asking(authority: Authority, shown: tuple[Path, Path] | None, credential: str = "") -> httpx.Client:
    """A client that trusts the authority, and shows that certificate."""
    context = ssl.create_default_context(cafile=authority.file)
    if shown is not None:
        context.load_cert_chain(*shown)
    headers = {"Authorization": f"Bearer {credential}"} if credential else {}
    return httpx.Client(verify=context, trust_env=False, headers=headers)


def enrolled(running: Inside, asks: httpx.Client, name: str) -> httpx.Response:
    """The answer to a newcomer of that name."""
    body = {**AS_NODE, "token": running.token(), "name": name}
    headers = {"Idempotency-Key": "k" * 24 + name}
    return asks.post(f"{running.url}/api/v1/enrol", json=body, headers=headers)


def assert_refused(answer: httpx.Response, said: str) -> None:
    assert (answer.status_code, answer.json()["code"]) == (403, "auth.certificate")
    assert said in answer.json()["detail"]


def test_a_node_with_its_certificate_does_a_whole_job(running: Inside, authority: Authority, tmp_path: Path) -> None:
    cert, key = authority.issue("n0", "n0")
    running.begin("a", nodes=1, rounds=2)
    given = {"url": running.url, "token": running.token(), "name": "n0", "state_dir": tmp_path / "n0", "jobs": ["a"]}
    given |= {"ca_file": authority.file, "client_cert": cert, "client_key": key, "poll_wait_s": 5.0}
    agent = Agent(EdgeSettings.model_validate(given), VectorLearner(100_000))
    asyncio.run(asyncio.wait_for(agent.run(), 60))
    until("the job to end", lambda: running.job("a")["ended_at"])
    assert running.job("a")["version"] == 2


def test_a_credential_alone_is_not_enough(running: Inside, authority: Authority) -> None:
    own = authority.issue("own", "own")
    with asking(authority, own) as asks:
        answer = enrolled(running, asks, "own")
        assert answer.status_code == 201, answer.text
        credential = answer.json()["credential"]
    paths = ["/work?wait_s=0", "/work?wait_s=0&job=x&other=1", f"/jobs/a/blobs/{'0' * 64}"]
    stolen = {"shown no certificate": None, "made out to n9, not to own": authority.issue("n9", "n9")}
    for said, shown in stolen.items():
        with asking(authority, shown, credential) as asks:
            for path in paths:
                assert_refused(asks.get(f"{running.url}/api/v1{path}"), said)
            assert_refused(asks.post(f"{running.url}/api/v1/hello", json=AS_NODE), said)
            assert_refused(asks.post(f"{running.url}/api/v1/jobs/a/reports", content=b"x"), said)
    with asking(authority, own, credential) as asks:
        assert asks.get(f"{running.url}/api/v1/work?wait_s=0").status_code == 204


def test_a_newcomer_may_only_take_its_own_name(running: Inside, authority: Authority) -> None:
    with asking(authority, None) as asks:
        assert_refused(enrolled(running, asks, "new"), "shown no certificate")
    with asking(authority, authority.issue("other", "other", "second")) as asks:
        assert_refused(enrolled(running, asks, "new"), "made out to other, second, not to new")
        assert enrolled(running, asks, "second").status_code == 201
    with asking(authority, authority.issue("common")) as asks:  # no DNS names: the common name counts
        assert enrolled(running, asks, "common").status_code == 201
    with asking(authority, authority.issue("common", "dns")) as asks:
        assert_refused(enrolled(running, asks, "common"), "made out to dns, not to common")


def test_people_need_no_certificate(running: Inside) -> None:
    assert running.request("GET", "/api/v1/jobs").status_code == 200
    assert running.request("GET", "/healthz").status_code == 200


def test_a_certificate_of_another_authority_is_refused(running: Inside, authority: Authority, tmp_path: Path) -> None:
    foreign = Authority(tmp_path / "foreign").issue("n0", "n0")
    with Link(running.url, ca_file=authority.file, client_cert=foreign) as link, pytest.raises(Unreachable) as caught:
        link.json("GET", "/healthz")
    assert f"does it refuse {foreign[0]}?" in caught.value.hint, "TLS ends the connection without a word"


@pytest.mark.parametrize(
    "said", ["tlsv13 alert certificate required", "[SSL: TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert unknown ca"]
)
def test_what_tls_says_of_ones_own_certificate_is_told_as_that(said: str) -> None:
    with Link("https://127.0.0.1:1") as link:
        found = link._unreachable(ssl.SSLError(said))
    assert found.code == "tls.refused"
    assert "client_cert" in found.hint


def test_files_that_are_no_certificate_are_named(authority: Authority) -> None:
    cert, _ = authority.issue("n0", "n0")
    with pytest.raises(ShoalError, match=r"authority\.pem") as caught:
        Link("https://127.0.0.1:1", ca_file=authority.file, client_cert=(cert, authority.file))
    assert caught.value.code == "usage.client-cert"


def test_settings_that_do_not_fit_are_refused(authority: Authority) -> None:
    with pytest.raises(NotAllowed, match="tls_client_ca without tls_cert"):
        tls_options(Settings(tls_client_ca=authority.file))
    with pytest.raises(ValidationError, match="client_cert and client_key"):
        EdgeSettings(client_cert=authority.file)


@pytest.mark.parametrize("names", [None, (), ("n0", "n1")])
def test_another_coordinator_is_told_whose_certificate_it_was(names: tuple[str, ...] | None) -> None:
    leader = RemoteLeader(3, "http://10.0.0.1:8080", "secret")
    scope: dict[str, Any] = {"method": "GET", "raw_path": b"/api/v1/work", "query_string": b"", "scheme": "https"}
    scope |= {"client": ("10.0.0.9", 1234), "headers": []}
    asked = scope if names is None else {**scope, CERTIFIED_KEY: names}
    there = {
        **scope,
        "headers": [(reverse_proxy.HEADER, reverse_proxy.stamp(asked, leader))],
        CERTIFIED_KEY: ("forged",),
    }
    assert reverse_proxy.accept(there, 3, "secret")
    assert there.get(CERTIFIED_KEY) == names
