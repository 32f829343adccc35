"""Units of systemd and configurations of proxies: held to the settings they name and to what the protocol needs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shoal_coordinator.settings import Settings
from tests.deploy.test_containers import assert_setting

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = ["shoal-coordinator.service", "shoal-edge-client.service"]
PROXIES = ["haproxy.cfg", "nginx.conf", "Caddyfile"]


def unit(name: str) -> dict[str, list[str]]:
    """Values of each key of a unit, in order."""
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / "systemd" / name).read_text().splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_is_hardened_and_names_settings(name: str) -> None:
    said = unit(name)
    for key, value in {
        "DynamicUser": "yes",
        "NoNewPrivileges": "yes",
        "ProtectSystem": "strict",
        "CapabilityBoundingSet": "",
        "UMask": "0077",
        "StateDirectory": name.removesuffix(".service"),
    }.items():
        assert said[key] == [value], key
    assert int(said["LimitNOFILE"][0]) > Settings().connections_max
    text = (DEPLOY / "systemd" / name).read_text()
    variables = re.findall(r"SHOAL_\w+__\w+", text)
    assert variables
    for variable in variables:
        assert_setting(variable)
    assert "2" in said["RestartPreventExitStatus"][0].split(), "a wrong setting does not mend itself"


def code(name: str) -> str:
    """A configuration without its comments."""
    lines = (DEPLOY / name).read_text().splitlines()
    return "\n".join(re.sub(r"(^|\s)#.*", "", line) for line in lines)


@pytest.mark.parametrize("name", PROXIES)
def test_a_proxy_holds_polls_open_and_looks_at_life_alone(name: str) -> None:
    text = code(name)
    assert "readyz" not in text, "one job in trouble would turn every node away"
    assert "shutdown-sessions" not in text
    assert "Retry-After 5" in text, "while it reaches no coordinator"
    if name == "haproxy.cfg":  # the others notice by the requests themselves
        assert "GET /healthz" in text
        assert "rstatus ^(200|503)$" in text, "a full coordinator lives"
    waits = [int(found) for found in re.findall(r"(?:timeout server|proxy_read_timeout|header_timeout) (\d+)s", text)]
    assert len(waits) == 1
    assert waits[0] > 2 * Settings().poll_s_max
