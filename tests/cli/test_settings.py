"""Settings come from where a person expects them, and say so."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, SecretStr

from shoal.configuration import DEFAULT_URL, ClientSettings, DataSettings, config_file, load, origins
from shoal.core.errors import ShoalError
from shoal_edge_client.settings import EdgeSettings


def client(**given: object) -> ClientSettings:
    return load(ClientSettings, "client", given=given)


def source(key: str, config: Path | None = None, **given: object) -> str:
    return next(one.source for one in origins(ClientSettings, "client", config=config, given=given) if one.key == key)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_without_anything_the_defaults_hold() -> None:
    assert client() == ClientSettings(url=DEFAULT_URL)
    assert source("url") == "default"


def test_stronger_sources_win_one_by_one(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step adds a stronger source; the value and its origin follow."""
    home = write(place / "home/shoal/config.toml", 'client.url = "http://home:1"')
    assert (client().url, source("url")) == ("http://home:1", str(home))
    write(place / "shoal.toml", 'client.url = "http://here:1"')
    assert (client().url, source("url")) == ("http://here:1", "shoal.toml")
    named = write(place / "named.toml", 'client.url = "http://named:1"')
    monkeypatch.setenv("SHOAL_CONFIG", str(named))
    assert (client().url, source("url")) == ("http://named:1", str(named))
    option = write(place / "option.toml", 'client.url = "http://option:1"')
    assert source("url", option) == str(option)
    monkeypatch.setenv("SHOAL_CLIENT__URL", "http://variable:1")
    assert (client().url, source("url")) == ("http://variable:1", "SHOAL_CLIENT__URL")
    assert (client(url="http://said:1").url, source("url", url="http://said:1")) == ("http://said:1", "command line")


def test_one_file_is_read_and_others_are_not(place: Path) -> None:
    write(place / "home/shoal/config.toml", "client.timeout_s = 7")
    write(place / "shoal.toml", 'client.url = "http://here:1"')
    assert client().timeout_s == 30


def test_what_was_not_said_changes_nothing() -> None:
    assert client(url=None) == client()


def test_a_secret_can_stand_in_a_file(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CLIENT__TOKEN_FILE", str(write(place / "token", "sho_abc\n")))
    assert client().token == SecretStr("sho_abc")
    assert source("token") == "SHOAL_CLIENT__TOKEN_FILE"


def test_a_key_that_ends_in_file_is_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CLIENT__CA_FILE", "ca.pem")
    assert client().ca_file == Path("ca.pem")


def test_a_key_beside_one_that_ends_in_file_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Both(BaseModel):
        model_config = ConfigDict(extra="forbid", frozen=True)
        ca: str = ""
        ca_file: str = ""

    monkeypatch.setenv("SHOAL_CLIENT__CA_FILE", "ca.pem")  # which isn't there
    assert load(Both, "client") == Both(ca_file="ca.pem")


def test_lists_in_the_environment_are_json(monkeypatch: pytest.MonkeyPatch) -> None:
    class Edge(BaseModel):
        model_config = ConfigDict(extra="forbid", frozen=True)
        jobs: list[str] = []
        threads: int = 0

    monkeypatch.setenv("SHOAL_EDGE__JOBS", '["a", "b"]')
    monkeypatch.setenv("SHOAL_EDGE__THREADS", "3")
    assert load(Edge, "edge") == Edge(jobs=["a", "b"], threads=3)


def error_of(*_: object, section: str = "client", config: Path | None = None) -> ShoalError:
    kind = {"client": ClientSettings, "data": DataSettings}[section]
    with pytest.raises(ShoalError) as caught:
        load(kind, section, config=config)
    return caught.value


def test_an_unknown_key_is_an_error_with_a_suggestion(place: Path) -> None:
    write(place / "shoal.toml", 'client.ulr = "http://x:1"')
    error = error_of()
    assert (error.code, error.hint) == ("config.unknown", "did you mean 'url'?")
    assert error.message == "shoal.toml: [client]: unknown key 'ulr'"


def test_an_unknown_section_is_an_error_with_a_suggestion(place: Path) -> None:
    write(place / "shoal.toml", "coordinater.port = 1")
    assert error_of().hint == "did you mean 'coordinator'?"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("SHOAL_CLIENT__URI", "did you mean 'url'?"),
        ("SHOAL_CLIENT__TOKN_FILE", "did you mean 'token'?"),
        ("SHOAL_CLINT__URL", "did you mean 'client'?"),
        ("SHOAL_CLIENT__WHATEVER", "known: ca_file, insecure, timeout_s, token, url"),
    ],
)
def test_an_unknown_variable_is_an_error(monkeypatch: pytest.MonkeyPatch, name: str, hint: str) -> None:
    monkeypatch.setenv(name, "x")
    error = error_of()
    assert (error.code, error.hint) == ("config.unknown", hint)
    assert name in error.message


def test_variables_of_other_sections_and_of_kubernetes_are_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_EDGE__NAME", "a")
    monkeypatch.setenv("SHOAL_PORT", "tcp://10.0.0.1:80")
    monkeypatch.setenv("SHOAL_SERVICE_HOST", "10.0.0.1")
    assert client() == ClientSettings()


def test_a_wrong_value_names_its_source(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(place / "shoal.toml", "client.timeout_s = -1")
    assert error_of().message.startswith("shoal.toml: client.timeout_s: ")
    monkeypatch.setenv("SHOAL_CLIENT__TIMEOUT_S", "soon")
    error = error_of()
    assert error.code == "config.invalid"
    assert error.message.startswith("SHOAL_CLIENT__TIMEOUT_S: client.timeout_s: ")
    with pytest.raises(ShoalError, match=r"^settings: edge: a thread is in one process"):
        load(EdgeSettings, "edge", given={"processes": 2, "trainer": "thread"})


def test_a_list_that_is_none_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_EDGE__TAGS", "phone")
    with pytest.raises(ShoalError, match="SHOAL_EDGE__TAGS is not JSON") as caught:
        load(EdgeSettings, "edge")
    assert (caught.value.code, '["a", "b"]' in caught.value.hint) == ("config.invalid", True)


def test_a_key_set_twice_is_an_error(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CLIENT__TOKEN", "sho_a")
    monkeypatch.setenv("SHOAL_CLIENT__TOKEN_FILE", str(write(place / "token", "sho_b")))
    assert error_of().code == "config.twice"


@pytest.mark.parametrize(
    ("text", "code"),
    [("client = 3", "config.invalid"), ("client = [", "config.unreadable"), (b"\xff", "config.unreadable")],
)
def test_a_damaged_file_is_an_error(place: Path, text: str | bytes, code: str) -> None:
    path = place / "bad.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    error = error_of(config=path)
    assert error.code == code
    assert str(path) in error.message


def test_a_missing_file_is_an_error_only_where_it_is_named(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert config_file() is None
    error = error_of(config=place / "gone.toml")
    assert error.code == "config.missing"
    assert "--config" in error.message
    monkeypatch.setenv("SHOAL_CONFIG", str(place / "gone.toml"))
    assert "SHOAL_CONFIG" in error_of().message
    monkeypatch.delenv("SHOAL_CONFIG")
    monkeypatch.setenv("SHOAL_CLIENT__TOKEN_FILE", str(place / "gone"))
    assert error_of().code == "config.unreadable"


def test_data_lie_in_the_users_cache(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.learn.data.datasets import cache_folder

    assert load(DataSettings, "data").cache == place / "home/shoal/data" == cache_folder()
    monkeypatch.setenv("SHOAL_DATA__CACHE", str(place / "elsewhere"))
    assert load(DataSettings, "data").cache == place / "elsewhere" == cache_folder()


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("127.0.0.1:8099", "write http://127.0.0.1:8099"),
        ("localhost:8099", "write http://localhost:8099"),
        ("//host/under", "write http://host/under"),
        ("ftp://host", "write for example http://127.0.0.1:8080"),
        ("http://", "write for example http://127.0.0.1:8080"),
        ("", "write for example http://127.0.0.1:8080"),
    ],
)
def test_an_address_without_http_says_what_to_write(said: str, told: str) -> None:
    with pytest.raises(ShoalError) as error:
        client(url=said)
    assert error.value.message == f"command line: client.url: {said!r} is not an address: {told}"
