"""Peers find each other on a network, by a stand-in for multicast that all of them share."""

from __future__ import annotations

import asyncio
import socket
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from shoal.core.errors import ShoalError, Unreachable
from shoal.extras import install_hint
from shoal_peer.mdns import SERVICE, MdnsDiscovery, MdnsRecord, own_addresses, texts
from shoal_peer.process import announce
from tests.peer.scenario import apart, folders, node, to_its_end, until

Patch = pytest.MonkeyPatch


class Air:
    """A fake of the used part of zeroconf: announcements and listeners."""

    def __init__(self) -> None:
        self.services: dict[str, ServiceInfo] = {}
        self.browsers: list[tuple[Any, Any]] = []
        self.broken = False

    def tell(self, zeroconf: Any, handler: Any, name: str, change: str) -> None:
        handler(zeroconf=zeroconf, service_type=SERVICE, name=name, state_change=change)

    def module(self) -> ModuleType:
        made, air = ModuleType("zeroconf"), self

        class Zeroconf:
            def __init__(self) -> None:
                if air.broken:
                    raise OSError("no such device")
                self.own: list[str] = []

            def register_service(self, info: ServiceInfo) -> None:
                self.own.append(info.name)
                air.services[info.name] = info
                for zeroconf, handler in air.browsers:
                    air.tell(zeroconf, handler, info.name, "added")

            def get_service_info(self, type_: str, name: str, timeout: int) -> ServiceInfo | None:
                assert (type_, timeout > 0) == (SERVICE, True)
                return air.services.get(name)

            def close(self) -> None:
                air.browsers = [one for one in air.browsers if one[0] is not self]
                for name in self.own:
                    del air.services[name]
                    for zeroconf, handler in air.browsers:
                        air.tell(zeroconf, handler, name, "removed")

        def browser(zeroconf: Any, type_: str, handlers: list[Any]) -> None:
            assert type_ == SERVICE
            air.browsers.append((zeroconf, handlers[0]))
            for name in list(air.services):
                air.tell(zeroconf, handlers[0], name, "added")

        contents = {
            "Zeroconf": Zeroconf,
            "ServiceInfo": ServiceInfo,
            "ServiceBrowser": browser,
            "ServiceStateChange": type("ServiceStateChange", (), {"Removed": "removed"}),
            "IPVersion": type("IPVersion", (), {"V4Only": 4}),
            "Error": type("Error", (Exception,), {}),
            "get_all_addresses": lambda: ["127.0.0.1", "10.1.2.3"],
        }
        vars(made).update(contents)
        return made


class ServiceInfo:
    def __init__(self, type_: str, name: str, *, addresses: list[bytes], port: int, properties: dict[str, str]) -> None:
        assert name.endswith(f".{type_}")
        self.name, self.addresses, self.port = name, addresses, port
        self.properties = {key.encode(): value.encode() for key, value in properties.items()}

    def parsed_addresses(self, version: int) -> list[str]:
        assert version == 4
        return [socket.inet_ntoa(address) for address in self.addresses]


@pytest.fixture
def air(monkeypatch: Patch) -> Air:
    made = Air()
    monkeypatch.setitem(sys.modules, "zeroconf", made.module())
    return made


def test_three_peers_without_addresses_find_each_other_and_become_one(air: Air, tmp_path: Path) -> None:
    async def scene() -> None:
        peers = folders(tmp_path, silent="abc", rounds=3)
        async with AsyncExitStack() as stack:
            made = []
            for number, who in enumerate("abc", 1):
                one = await stack.enter_async_context(node(peers / who, number, lan=True))
                await stack.enter_async_context(announce(one, "127.0.0.1", one.port))  # type: ignore[attr-defined]
                made.append(one)
            await until(lambda: all(len(one.group.router.links) == 2 for one in made), "they have not found each other")
            await asyncio.wait_for(asyncio.gather(*(to_its_end(one) for one in made)), 100.0)
            assert apart(made) < 0.005
            assert not any(one.group.refusals.counts for one in made)
        assert not air.services

    asyncio.run(scene())


def test_what_was_found_gives_way_to_an_address_that_works(air: Air, tmp_path: Path) -> None:
    async def scene() -> None:
        peers = folders(tmp_path)
        async with node(peers / "a", hold=True, join={"c": "http://127.0.0.1:9"}) as made:
            ids = {peer.node: peer.peer_id for peer in made.group.documents.others}
            first = made.group.router.links["b"]
            made.group.on_discovered(ids["b"], "http://10.0.0.2:9001")
            assert made.group.router.links["b"] is first
            first.last_error = "nobody there"
            made.group.on_discovered(ids["b"], "http://10.0.0.2:9001")
            assert made.group.router.links["b"].url == "http://10.0.0.2:9001"
            made.group.router.links["c"].last_error = "nobody there"
            made.group.on_discovered(ids["c"], "http://10.0.0.3:9001")
            assert made.group.router.links["c"].url == "http://127.0.0.1:9", "a person has said so"
            made.group.on_discovered("nobody-of-the-roster", "http://10.0.0.4:9001")
            assert made.group.router.links.keys() == {"b", "c"}

    asyncio.run(scene())


def test_only_others_of_the_same_job_are_told_of(air: Air) -> None:
    found: list[tuple[str, str]] = []

    def lan(job: str, peer_id: str, port: int) -> MdnsDiscovery:
        return MdnsDiscovery(MdnsRecord(job, "x", peer_id, ("10.0.0.9",), port), lambda *one: found.append(one))

    with lan("toys", "pa", 1), lan("other", "pb", 2), lan("toys", "pc", 3):
        assert sorted(found) == [("pa", "http://10.0.0.9:1"), ("pc", "http://10.0.0.9:3")]
    assert not air.services


def test_without_multicast_it_is_said(air: Air) -> None:
    air.broken = True
    with pytest.raises(Unreachable, match="no multicast here") as caught:
        MdnsDiscovery(MdnsRecord("toys", "a", "pa", (), 1), lambda *_: None).__enter__()
    assert "--join" in caught.value.hint


def test_without_the_extra_it_is_said(monkeypatch: Patch) -> None:
    monkeypatch.setitem(sys.modules, "zeroconf", None)
    with pytest.raises(ShoalError, match="--discover needs zeroconf") as caught:
        MdnsDiscovery(MdnsRecord("toys", "a", "pa", (), 1), lambda *_: None)
    assert caught.value.code == "usage.extra"
    assert caught.value.hint == install_hint("lan")


def test_addresses_that_others_can_use_are_announced(air: Air) -> None:
    assert own_addresses("192.168.0.7") == ("192.168.0.7",)
    assert own_addresses("0.0.0.0") == ("10.1.2.3",)


def test_what_is_no_text_is_left_out() -> None:
    assert texts({b"job": b"toys", b"x": b"\xff", b"none": None}) == {"job": "toys", "none": ""}
