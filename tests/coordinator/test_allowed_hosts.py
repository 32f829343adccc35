"""Which hosts a coordinator answers for, and whom it lets read behind a proxy."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from shoal.runtime.http.server.allowed_hosts import host_of, is_loopback
from shoal_coordinator.settings import Settings
from tests.support.coordinator import OPERATOR, Inside, inside
from tests.support.raw_http import answer, connected

OWN = socket.gethostname()
JOBS = "/api/v1/jobs"


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    """On loopback, with a name of its own beside it."""
    with inside(tmp_path_factory.mktemp("local") / "data", hosts=["shoal.example.org"]) as running:
        yield running


def ask(running: Inside, *headers: str, path: str = JOBS, version: str = "1.1") -> tuple[int, str]:
    """The status of the answer to a request with these headers, and the code of a problem."""
    lines = [f"GET {path} HTTP/{version}", *headers, "Connection: close", "", ""]
    with connected(running.url) as raw:
        raw.sendall("\r\n".join(lines).encode("latin-1"))
        found = answer(raw)
    status, body = int(found.split()[1]), found.partition(b"\r\n\r\n")[2]
    return status, json.loads(body)["code"] if status >= 400 else ""


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8080", "127.8.8.8", "localhost", "LocalHost:1", "[::1]:80"])
def test_loopback_is_known(local: Inside, host: str) -> None:
    assert ask(local, f"Host: {host}") == (200, "")


HOSTS = ["evil.example:8080", "10.0.0.1", "localhost.evil.example", "x\xe9", "."]
PATHS = [JOBS, "/api/v1/stream", "/", "/healthz", "/api/v1/session", "/openapi.json"]


@pytest.mark.parametrize(
    ("host", "path"), [*((host, JOBS) for host in HOSTS), *(("evil.example", path) for path in PATHS)]
)
def test_a_foreign_host_is_refused(local: Inside, host: str, path: str) -> None:
    assert ask(local, f"Host: {host}", path=path) == (421, "host.unknown")


def test_a_foreign_host_is_refused_whoever_asks(local: Inside) -> None:
    assert ask(local, "Host: evil.example", f"Authorization: Bearer {OPERATOR}") == (421, "host.unknown")
    assert ask(local, "Host: localhost", "Host: evil.example") == (421, "host.unknown")


def test_no_host_is_no_browsers(local: Inside) -> None:
    """HAProxy asks after a server's health without one."""
    assert ask(local, path="/readyz", version="1.0") == (200, "")


PROXIES = {
    "Forwarded": ["Host: localhost", "Forwarded: for=10.0.0.9;proto=https"],
    "X-Forwarded-For": ["Host: localhost", "X-Forwarded-For: 10.0.0.9"],
    "X-Forwarded-Proto": ["Host: localhost", "x-forwarded-proto: https"],
    "X-Real-IP": ["Host: localhost", "X-Real-IP: 10.0.0.9"],
    "Via": ["Host: localhost", "Via: 1.1 proxy"],
    "only its name": ["Host: shoal.example.org"],
}


READ = ["/api/v1/stream", "/metrics", "/api/v1/nodes", f"/api/v1/jobs/a/blobs/{'0' * 64}"]


@pytest.mark.parametrize(("proxy", "path"), [*((proxy, JOBS) for proxy in PROXIES), *(("Via", path) for path in READ)])
def test_behind_a_proxy_nobody_reads_without_a_credential(local: Inside, proxy: str, path: str) -> None:
    status, code = ask(local, *PROXIES[proxy], path=path)
    assert (status, code) == (401, "auth.missing") or (status, code) == (404, "job.unknown")
    assert status == 401 or "/blobs/" in path


def test_behind_nginx_as_it_comes_nobody_does_either(local: Inside) -> None:
    assert ask(local, "Host: 127.0.0.1", version="1.0") == (401, "auth.missing")


def test_with_a_credential_a_proxy_changes_nothing(local: Inside) -> None:
    assert ask(local, *PROXIES["Forwarded"], f"Authorization: Bearer {OPERATOR}") == (200, "")


def test_who_says_that_reading_is_open_means_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    with inside(tmp_path_factory.mktemp("open") / "data", anonymous_read=True) as running:
        assert ask(running, "Host: localhost", "X-Forwarded-For: 10.0.0.9") == (200, "")


@pytest.mark.parametrize(
    ("listens", "known", "unknown"),
    [
        ("0.0.0.0", ["10.0.0.1", "[fe80::1]:8080", OWN, "a.example"], ["evil.example", "x"]),
        ("10.1.2.3", ["10.1.2.3:8080", OWN.upper(), "a.example."], ["evil.example"]),
        ("127.0.0.1", ["a.example"], ["10.0.0.1"]),
        ("gpu.lan", ["gpu.lan", "GPU.LAN:80"], ["lan"]),
    ],
)
def test_what_is_known_follows_from_the_settings(listens: str, known: list[str], unknown: list[str]) -> None:
    hosts = Settings(host=listens, hosts=["a.example"], advertise="http://b.example:8080").known_hosts
    assert all(map(hosts.knows, [*known, "localhost", "b.example"]))
    assert not any(map(hosts.knows, unknown))


def test_hosts_are_read_in_all_their_forms() -> None:
    forms = {"A.b:80": "a.b", "a.b.": "a.b", "[::1]:80": "::1", "::1": "::1", "": "", "[": "", "a:b:c": "a:b:c"}
    assert {form: host_of(form) for form in forms} == forms
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "127.0.0.1.evil.example", "")] == [
        *[True] * 3,
        *[False] * 2,
    ]
