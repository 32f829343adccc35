"""Coordinators on one database that speak https: they know each other by the certificate that is told there alone."""

from __future__ import annotations

import datetime as dt
import hashlib
import ipaddress
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from shoal_coordinator.cluster.reverse_proxy import fingerprint
from tests.support.cluster import lease, owners, settings
from tests.support.coordinator import OPERATOR, Inside
from tests.support.http_servers import CERTIFICATE, Asked, Said, answering
from tests.support.node import body, initial
from tests.support.postgres import Cluster
from tests.support.waiting import until

SKEW = dt.timedelta(hours=1)


def issued(subject: str, key: Any, issuer: str, by: Any, *, authority: bool = False) -> bytes:
    """A certificate for 127.0.0.1, as PEM."""
    now = dt.datetime.now(dt.UTC)
    name, signer = (x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, word)]) for word in (subject, issuer))
    made = (
        x509.CertificateBuilder(signer, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + SKEW)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
    )
    return made.sign(by, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@pytest.fixture
def tls(tmp_path: Path) -> dict[str, str]:
    """The settings for https: a chain, as most authorities hand it out, and its key."""
    key, authority = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    root = issued("authority", authority, "authority", authority, authority=True)
    chain, private, trusted = (tmp_path / name for name in ("chain.pem", "key.pem", "authority.pem"))
    chain.write_bytes(issued("coordinator", key, "authority", authority) + root)
    trusted.write_bytes(root)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    private.write_bytes(key.private_bytes(*form))
    return {"tls_cert": str(chain), "tls_key": str(private)}


@contextmanager
def pair(tmp_path: Path, url: str, tls: dict[str, str], **owner: Any) -> Iterator[tuple[Inside, Inside]]:
    """An owner and a standby, over https alone. `owner`: more settings of the first one."""
    first = Inside(tmp_path / "one", **settings(tmp_path, url), **tls, **owner).start()
    second = Inside(tmp_path / "two", **settings(tmp_path, url), **tls).start()
    try:
        yield first, second
    finally:
        second.stop()
        first.stop()


@pytest.fixture
def asks(tmp_path: Path, tls: dict[str, str]) -> Iterator[httpx.Client]:
    """An operator's client that trusts the authority, as a person's would."""
    context = ssl.create_default_context(cafile=tmp_path / "authority.pem")
    assert tls
    with httpx.Client(verify=context, trust_env=False, headers={"Authorization": f"Bearer {OPERATOR}"}) as found:
        yield found


def test_they_pass_on_to_each_other_over_https(
    cluster: Cluster, tmp_path: Path, tls: dict[str, str], asks: httpx.Client
) -> None:
    url, data = cluster.database(), body(initial(400_000))
    pinned = fingerprint(Path(tls["tls_cert"]).read_text())
    with pair(tmp_path, url, tls) as (owner, standby):
        assert owner.url.startswith("https://")
        assert lease(url)[1] == f"{owner.url}#{pinned}"
        until("the leader to know the other", owner.coordinator.cluster.routes.live)
        told = [asks.get(f"{one.url}/api/v1/leader").json() for one in (owner, standby)]
        assert told[0] == told[1]
        assert told[0]["address"] == owner.url
        path = f"/api/v1/blobs/{hashlib.sha256(data).hexdigest()}"
        assert asks.put(f"{standby.url}{path}", content=data).status_code == 201
        made = asks.post(f"{standby.url}/api/v1/tokens", json={"role": "viewer"})
        assert made.status_code == 201
        assert asks.get(f"{owner.url}/api/v1/tokens").json() == asks.get(f"{standby.url}/api/v1/tokens").json()
        for name in ("first", "second"):
            spec = {"name": name, "rounds": 1, "schedule": {"name": "rounds", "min_nodes": 1}}
            assert asks.post(f"{owner.url}/api/v1/jobs", json={"spec": spec}).status_code == 201
        assert owners(url) == {"first": "", "second": f"{standby.url}#{pinned}"}
        for where in (owner, standby):
            jobs = [asks.get(f"{where.url}/api/v1/jobs/{name}").json()["name"] for name in ("first", "second")]
            assert jobs == ["first", "second"]
            figures = asks.get(f"{where.url}/metrics").text
            assert "shoal_replica_forwards_total 0.0" not in figures
            assert "shoal_replica_forward_failures_total 0.0" in figures


@pytest.mark.parametrize("told", ["another's", "none", "its own"])
def test_a_request_goes_to_nobody_else(
    cluster: Cluster, tmp_path: Path, tls: dict[str, str], asks: httpx.Client, told: str
) -> None:
    """At the owner's address, a server with a certificate of its own receives nothing, above all no credential, unless
    the database has this certificate."""
    heard: list[str] = []

    def answer(asked: Asked) -> Said:
        heard.append(asked.path)
        return Said(418)

    certificates = {"another's": tls["tls_cert"], "its own": str(CERTIFICATE)}
    with answering(answer, tls=True) as elsewhere:
        pin = f"#{fingerprint(Path(certificates[told]).read_text())}" if told in certificates else ""
        with pair(tmp_path, cluster.database(), tls, advertise=f"{elsewhere}{pin}") as (owner, standby):
            until("the standby to know", lambda: asks.get(f"{standby.url}/readyz").status_code == 200)
            found = asks.get(f"{standby.url}/api/v1/jobs")
            assert asks.get(f"{owner.url}/api/v1/jobs").status_code == 200
    if told == "its own":
        assert (found.status_code, "/api/v1/jobs" in heard) == (418, True)
        return
    assert (found.status_code, found.json()["code"], heard) == (503, "replica.no-leader", [])
    assert int(found.headers["retry-after"]) >= 1
