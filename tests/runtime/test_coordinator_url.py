"""Where a link may go."""

from __future__ import annotations

import ipaddress

import pytest

from shoal.core.errors import NotAllowed, ShoalError
from shoal.runtime.http import coordinator_url
from shoal.runtime.http.coordinator_url import Address, check, is_loopback, parse


@pytest.mark.parametrize(
    ("text", "url", "slug"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080", "127.0.0.1_8080"),
        ("http://Host.Example/", "http://host.example", "host.example_80"),
        ("https://host:443/shoal/", "https://host/shoal", "host_443_shoal"),
        ("https://[::1]:8443", "https://[::1]:8443", "1_8443"),
    ],
)
def test_one_form_for_all_ways_to_write_it(text: str, url: str, slug: str) -> None:
    assert (parse(text).url, parse(text).slug) == (url, slug)
    assert parse(parse(text).url) == parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host:8080",
        "ftp://host",
        "http://",
        "http://host:99999",
        "http://u:secret@host",
        "http://h/?token=secret",
        "http://h/#x",
    ],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ShoalError) as error:
        parse(text)
    assert error.value.code == "usage.address"
    assert "secret" not in error.value.message


@pytest.mark.parametrize(
    ("host", "here"),
    [("localhost", True), ("127.9.9.9", True), ("::1", True), ("10.0.0.1", False), ("localhost.example", False)],
)
def test_loopback_is_known_by_how_it_is_written(host: str, here: bool) -> None:
    assert is_loopback(Address("http", host, 80, "")) is here


@pytest.mark.parametrize(
    ("hosts", "public"),
    [
        (["10.1.2.3"], False),
        (["192.168.0.9", "fd00::1"], False),
        (["9.9.9.9"], True),
        (["10.1.2.3", "9.9.9.9"], True),
        (["2620:fe::fe"], True),
        (["100.64.0.1"], True),
    ],
)
def test_plain_http_stays_among_private_addresses(
    monkeypatch: pytest.MonkeyPatch, hosts: list[str], public: bool
) -> None:
    monkeypatch.setattr(coordinator_url, "lookup", lambda one: [ipaddress.ip_address(host) for host in hosts])
    plain = parse("http://somewhere:80")
    assert check(parse("https://somewhere"), insecure=False) == ""
    if not public:
        assert check(plain, insecure=False) == ""
        return
    with pytest.raises(NotAllowed) as error:
        check(plain, insecure=False)
    assert error.value.code == "http.insecure"
    assert "in the clear" in check(plain, insecure=True)


def test_names_are_looked_up() -> None:
    assert {ip.is_loopback for ip in coordinator_url.lookup(parse("http://localhost"))} == {True}
