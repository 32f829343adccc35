"""Commands that need no coordinator: config, algorithms, data, doctor, join and coordinator before they start."""

from __future__ import annotations

import gc
import socket
import sqlite3
import sys
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import pytest

from shoal.cli.commands import doctor
from shoal.cli.commands.config import address, sections
from shoal.configuration import SECTIONS
from shoal.memory import GARBAGE
from tests.cli.command_cases import COMMANDS
from tests.cli.conftest import Shoal, envelope
from tests.support.fake_coordinator import FakeCoordinator, Problem, raw


@pytest.fixture(autouse=True)
def own_garbage() -> Iterator[None]:
    """A coordinator's process searches for garbage in its own way; this one goes on in the way it did."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


# Config
def test_config_shows_every_setting_and_where_it_comes_from(shoal: Shoal, place: Path) -> None:
    (place / "mine.toml").write_text("edge.threads = 3\n")
    env = {"SHOAL_CLIENT__TIMEOUT_S": "5"}
    said = shoal("config", "show", "--origin", "--config", "mine.toml", env=env).stdout
    lines = {line.split()[0]: line.split()[1:] for line in said.splitlines() if "." in line}
    assert lines["client.timeout_s"] == ["5.0", "SHOAL_CLIENT__TIMEOUT_S"]
    assert lines["edge.threads"] == ["3", "mine.toml"]
    assert lines["coordinator.port"] == ["8080", "default"]
    found = envelope(shoal("config", "show", "--json", "--config", "mine.toml"))["data"]
    assert found["file"] == "mine.toml"
    assert len(found["settings"]) == sum(len(kind.model_fields) for kind in sections().values())


def test_config_alone_takes_the_options_of_show(shoal: Shoal) -> None:
    assert shoal("config", "--origin").stdout == shoal("config", "show", "--origin").stdout
    assert shoal("config", "--origin", "show").stdout == shoal("config", "show", "--origin").stdout


def test_every_section_has_its_model() -> None:
    assert sections().keys() == set(SECTIONS)


def test_every_setting_is_described() -> None:
    for section, kind in sections().items():
        for key, field in kind.model_fields.items():
            assert field.description, f"{section}.{key}"


def test_secrets_are_not_shown(shoal: Shoal) -> None:
    env = {
        "SHOAL_CLIENT__TOKEN": "sho_hush",
        "SHOAL_EDGE__TOKEN": "sht_hush",
        "SHOAL_COORDINATOR__OPERATOR_TOKEN": "sho_hush",
        "SHOAL_COORDINATOR__DATABASE_URL": "postgresql://me:hush@host/shoal",
        "SHOAL_COORDINATOR__ALERT_WEBHOOK": "https://hooks.example/services/hush?key=hush",
        "SHOAL_COORDINATOR__ALERT_WEBHOOK_SECRET": "hush",
        "SHOAL_COORDINATOR__BLOBS": "s3://hush:hush@bucket/models?secret=hush&endpoint=http://hush:hush@store:9000",
        "SHOAL_COORDINATOR__BLOBS_SECRET": "hush",
    }
    for more in ([], ["--json"], ["--origin"]):
        said = shoal("config", "show", *more, env=env).output
        assert "hush" not in said
        assert "postgresql://********@host/shoal" in said
    settings = {
        one["key"]: one["value"] for one in envelope(shoal("config", "show", "--json", env=env))["data"]["settings"]
    }
    assert settings["alert_webhook"] == "https://hooks.example/********?key=********"
    assert settings["blobs"] == "s3://********@bucket/models?secret=********&endpoint=http://********@store:9000"


@pytest.mark.parametrize(
    "text", ["sqlite:////a/b.db", "http://h:8080", "file:///x/y", "s3://b/p?region=eu", "postgresql://h/n"]
)
def test_addresses_without_a_secret_are_shown_as_they_are(text: str) -> None:
    assert address(text) == text


def test_an_address_that_cannot_be_read_is_not_shown() -> None:
    assert address("http://[hush") == "********"


def test_config_says_what_is_wrong(shoal: Shoal, place: Path) -> None:
    (place / "shoal.toml").write_text("[coordinator]\nprot = 1\n")
    result = shoal("config", "show")
    assert result.exit_code == 2
    assert "did you mean 'port'?" in result.stderr


# Algorithms
def test_algorithms_with_their_fields(shoal: Shoal) -> None:
    found = {one["name"]: one for one in envelope(shoal("algorithms", "--json"))["data"]["plugins"]}
    assert {"fedavg", "fedsgd", "rounds", "divergence", "quantize", "pairwise"} <= found.keys()
    kinds = [found[name]["kind"] for name in ("fedavg", "divergence", "quantize", "pairwise")]
    assert kinds == ["algorithm", "schedule", "filter", "mixing"]
    fields = {field["name"]: field for field in found["fedavg"]["fields"]}
    assert fields["lr"] == {
        "name": "lr",
        "type": "float at least 0",
        "default": 0.1,
        "about": "Local learning rate.",
    }
    for one in found.values():
        assert one["title"]
        assert one["about"]
        for field in one["fields"]:
            assert field["about"], f"{one['name']}.{field['name']}"


def test_algorithms_at_a_glance(shoal: Shoal) -> None:
    said = shoal("algorithms").stdout
    found = envelope(shoal("algorithms", "--json"))["data"]["plugins"]
    assert all(one["name"] in said and one["title"].split(",")[0] in said for one in found)
    assert said.count("selection") == 1, "the kind stands at its first"
    assert "batch_size" not in said
    assert "batch_size" in shoal("algorithms", "fedavg").stdout


def test_one_algorithm(shoal: Shoal) -> None:
    said = shoal("algorithms", "rounds").stdout
    assert "schedule rounds" in said
    assert "fedavg" not in said
    wrong = shoal("algorithms", "fedagv")
    assert (wrong.exit_code, "did you mean 'fedavg'?" in wrong.stderr) == (2, True)


# Data
def test_data_sets(shoal: Shoal, place: Path) -> None:
    found = envelope(shoal("data", "list", "--json"))["data"]
    assert found["cache"] == str(place / "home/shoal/data")
    assert {one["name"]: one["here"] for one in found["data_sets"]} == {"mnist": False, "fashion-mnist": False}


def test_data_from_a_folder_are_checked(shoal: Shoal, place: Path) -> None:
    (place / "files").mkdir()
    missing = shoal("data", "get", "mnist", "--from", "files")
    assert missing.exit_code == 2
    assert "train-images-idx3-ubyte" in missing.stderr
    (place / "files/train-images-idx3-ubyte").write_bytes(b"wrong")
    wrong = shoal("data", "get", "mnist", "--from", "files")
    assert wrong.exit_code == 1
    assert "SHA-256" in wrong.stderr
    assert not (place / "home/shoal/data/mnist/train-images-idx3-ubyte").exists()


def test_the_cache_of_a_settings_file_reaches_learners(place: Path) -> None:
    from shoal.cli.commands.data import share_cache
    from shoal.cli.terminal.output import Flags, out
    from shoal.learn.data.datasets import cache_folder

    (place / "shoal.toml").write_text('[data]\ncache = "sets"\n')
    out.begin(Flags())
    share_cache()
    assert cache_folder() == Path("sets")


# Doctor
def checks(shoal: Shoal, **env: str) -> dict[str, dict[str, str]]:
    found = envelope(shoal("doctor", "--json", env=env))["data"]
    return {check["name"]: check for check in found["checks"]}


def test_doctor_looks_at_everything(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    COMMANDS["doctor"].prepare(fake, place)
    found = checks(shoal, SHOAL_CLIENT__URL=fake.url)
    names = {
        "shoal",
        "python",
        "torch",
        "device",
        "coordinator",
        "sqlite",
        "dashboard",
        "settings",
        "port",
        "open files",
        "disk",
    }
    names |= {"fsync", "reachable", "credential", "clock", "connections", "coordinator's files"}
    assert names == found.keys()
    assert found["connections"]["found"] == "12 of 10000 are open"
    for check in found.values():
        assert check["found"]
        assert bool(check["fix"]) == (check["state"] != "ok"), check
    assert shoal("doctor", env={"SHOAL_CLIENT__URL": fake.url}).stdout.rstrip().endswith("shoal can run here")


@pytest.mark.usefixtures("sockets")
def test_doctor_tries_the_store_of_models(shoal: Shoal, place: Path) -> None:
    def found(url: str) -> dict[str, dict[str, str]]:
        return checks(shoal, SHOAL_COORDINATOR__BLOBS=url)

    assert "blobs" not in found("")
    assert found(f"{place}/shared")["blobs"]["found"] == f"{place}/shared takes and gives"
    (place / "file").write_text("")
    assert found(f"{place}/file")["blobs"]["state"] == "fail"
    assert "s3://bucket" in found("ftp://x")["blobs"]["fix"]


def test_doctor_fails_when_the_coordinator_that_was_named_is_not_there(shoal: Shoal) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        result = shoal("doctor", env={"SHOAL_CLIENT__URL": url})
    assert result.exit_code == 1
    assert "1 of " in result.stdout
    assert "cannot be reached" in result.stdout


def test_doctor_names_wrong_settings_and_a_refused_token(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    COMMANDS["doctor"].prepare(fake, place)
    fake.answers["GET /jobs"] = Problem(401, "auth.refused", "the credential is unknown", "see operator.token")
    (place / "shoal.toml").write_text("[edge]\nnmae = 'a'\n")
    found = checks(shoal, SHOAL_CLIENT__URL=fake.url, SHOAL_CLIENT__TOKEN="sho_x")
    assert (found["settings"]["state"], found["settings"]["fix"]) == ("fail", "did you mean 'name'?")
    assert (found["credential"]["state"], found["credential"]["fix"]) == ("fail", "see operator.token")


def test_doctor_sees_a_wrong_clock(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    COMMANDS["doctor"].prepare(fake, place)
    assert checks(shoal, SHOAL_CLIENT__URL=fake.url)["clock"]["state"] == "ok"
    date = formatdate(time.time() + 7230, usegmt=True)
    fake.answers["GET /version"] = raw(b'{"version": "0.1.0"}', {"Date": date})
    found = checks(shoal, SHOAL_CLIENT__URL=fake.url)["clock"]
    assert (found["state"], found["found"]) == ("warn", "2 h 00 min apart")


def test_doctor_sees_a_taken_port(shoal: Shoal) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        found = checks(shoal, SHOAL_COORDINATOR__PORT=str(taken.getsockname()[1]))
    assert (found["port"]["state"], "--port" in found["port"]["fix"]) == ("warn", True)


@pytest.mark.parametrize(("version", "state"), [((3, 40, 1), "warn"), ((3, 51, 2), "warn"), ((3, 51, 3), "ok")])
def test_doctor_knows_which_sqlite_is_sound(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int, int], state: str
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", version)
    found = next(check for check in doctor.server_parts() if check.name == "sqlite")
    assert found.state == state
    assert bool(found.fix) == (state == "warn")


def test_doctor_without_the_parts_of_a_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    real = doctor.importlib.util.find_spec
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda n: None if n == "fastapi" else real(n))
    (found,) = doctor.server_parts()
    assert (found.state, ".[coordinator]" in found.fix) == ("warn", True)


def test_doctor_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    (found,) = doctor.torch()
    assert (found.name, found.state) == ("torch", "warn"), "only learners need it"


def test_doctor_in_a_folder_that_cannot_be_written(shoal: Shoal, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(folder: Path) -> float:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(doctor, "fsync_seconds", refused)
    found = {check.name: check for check in doctor.disk()}
    assert (found["writing"].state, "--data" in found["writing"].fix) == ("fail", True)


# Processes, before they run
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--learner", "mine.py:learner", "--option", "part"], "KEY=VALUE"),
        (["--learner", "gone.py:learner"], "gone.py"),
        (["--learner", "shoal.learn.digits:learner", "--option", "prat=0"], "prat"),
        (["--learner", "gone.py:learner", "--name", "Ünfit"], "edge.name"),
        (["--learner", "gone.py:learner", "--trainer", "process"], "gone.py"),
        (["--learner", "gone.py:learner", "--trainer", "space"], "edge.trainer"),
        (["--learner", "gone.py:learner", "--tag", "No Tag"], "edge.tags"),
        (["--learner", "gone.py:learner", "--hours", "9-17"], "edge.hours"),
    ],
)
def test_join_says_what_is_wrong_before_it_joins(
    shoal: Shoal, fake: FakeCoordinator, arguments: list[str], says: str
) -> None:
    result = shoal("join", fake.url, "--token", "sht_x", "--state-dir", "state", *arguments)
    assert result.exit_code == 2, result.output
    assert says in result.stderr
    assert fake.asked == []


def test_join_reads_a_token_from_stdin(shoal: Shoal, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr("shoal_edge_client.process.run", lambda settings: seen.append(settings) or 0)
    arguments = ("--learner", "m:l", "--option", "part=3", "--option", "site=nan", "--device", "cpu", "--quiet")
    arguments += ("--tag", "phone", "--tag", "eu", "--hours", "22:00-06:00")
    result = shoal("join", "http://127.0.0.1:1", "--token", "-", *arguments, stdin="sht_secret\n")
    assert result.exit_code == 0, result.output
    (settings,) = seen
    assert settings.token.get_secret_value() == "sht_secret"
    assert (settings.tags, settings.hours) == (["phone", "eu"], ["22:00-06:00"])
    assert (settings.options, settings.device, settings.log_level) == ({"part": "3", "site": "nan"}, "cpu", "warning")


@pytest.mark.parametrize("code", [0, 1, 3, 130])
def test_join_ends_with_the_clients_code(shoal: Shoal, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr("shoal_edge_client.process.run", lambda settings: code)
    assert shoal("join", "http://127.0.0.1:1", "--learner", "m:l").exit_code == code


def test_coordinator_takes_its_settings_from_everywhere(
    shoal: Shoal, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(
        "shoal_coordinator.main.run", lambda settings, listens: seen.append(settings) or listens(18080) or 0
    )
    monkeypatch.setenv("MALLOC_TOP_PAD_", "0")  # as in the process that serves
    (place / "shoal.toml").write_text("[coordinator]\nlease_s = 3\nport = 1\n")
    result = shoal(
        "coordinator", "--port", "18080", "--data", "here", "--set", "heartbeat_s=1", "--set", "models_kept=5"
    )
    assert result.exit_code == 0, result.output
    (settings,) = seen
    assert (settings.port, settings.lease_s, settings.heartbeat_s, settings.models_kept) == (18080, 3, 1, 5)
    for part in ("http://127.0.0.1:18080", str(place / "here/operator.token"), "shoal token create"):
        assert part in result.stdout


def test_coordinator_names_no_file_for_a_token_that_was_given(shoal: Shoal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal_coordinator.main.run", lambda settings, listens: listens(18080) or 0)
    monkeypatch.setenv("SHOAL_COORDINATOR__OPERATOR_TOKEN", "sho_given")
    result = shoal("coordinator")
    assert (result.exit_code, "the token that was given" in result.stdout) == (0, True)
    assert "TOKEN_FILE" not in result.stdout
    assert "sho_given" not in result.stdout


def test_what_a_coordinator_makes_is_its_own(shoal: Shoal, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(*_: object) -> int:
        (place / "here").mkdir()
        return (place / "here/shoal.db").write_text("") or 0

    monkeypatch.setattr("shoal_coordinator.main.run", make)
    assert shoal("coordinator").exit_code == 0
    assert [(place / name).stat().st_mode & 0o77 for name in ("here", "here/shoal.db")] == [0, 0]
    (place / "after").write_text("")
    assert (place / "after").stat().st_mode & 0o44, "of this process alone, and for so long"


def test_coordinator_seldom_searches_for_garbage(shoal: Shoal, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr("shoal_coordinator.main.run", lambda settings, listens: seen.append(gc.get_threshold()) or 0)
    assert shoal("coordinator").exit_code == 0
    assert seen == [GARBAGE]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--set", "lesae_s=3"], "did you mean 'lease_s'?"),
        (["--set", "lease_s=soon"], "lease_s"),
        (["--port", "70000"], "port"),
    ],
)
def test_coordinator_says_what_is_wrong(shoal: Shoal, arguments: list[str], says: str) -> None:
    result = shoal("coordinator", *arguments)
    assert (result.exit_code, says in result.stderr) == (2, True)


def test_coordinator_where_its_parts_are_missing(shoal: Shoal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shoal_coordinator.main", None)
    result = shoal("coordinator")
    assert result.exit_code == 2
    assert ".[coordinator]" in result.stderr


def test_a_port_that_is_taken(shoal: Shoal, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = shoal("coordinator", "--port", taken.getsockname()[1])
    assert (result.exit_code, result.stdout) == (1, ""), "no address is shown before it can be opened"
    assert "--port" in result.stderr
    assert not (place / "shoal-data").exists()


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("0.0.0.0", "http://127.0.0.1:18080"),
        ("::", "http://127.0.0.1:18080"),
        ("::1", "http://[::1]:18080"),
        ("10.0.0.1", "http://10.0.0.1:18080"),
    ],
)
def test_the_address_that_is_shown_can_be_opened(
    shoal: Shoal, monkeypatch: pytest.MonkeyPatch, host: str, address: str
) -> None:
    monkeypatch.setattr("shoal_coordinator.main.run", lambda settings, listens: listens(18080) or 0)
    monkeypatch.setenv("MALLOC_TOP_PAD_", "0")
    said = shoal("coordinator", "--host", host, "--port", "0").stdout
    assert f"address    {address}  " in said
    assert (socket.gethostname() in said) == (host in ("0.0.0.0", "::"))
