"""The section `edge`."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from shoal import __version__
from shoal.configuration import load
from shoal.core.errors import ShoalError
from shoal.validation.message_checks import NAME
from shoal_edge_client.settings import EdgeSettings, machine_name
from shoal_edge_client.telemetry.node_info import collect_node_info


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("alpha", "alpha"),
        ("Alpha-7.example.org", "alpha-7"),
        ("GPU Box (old)", "gpu-box-old"),
        ("ünïcode", "n-code"),
        ("--_x_--", "x"),
        ("", "node"),
        ("...", "node"),
        ("hub.example.org", "node"),
        ("x" * 100, "x" * 63),
    ],
)
def test_a_machines_name_as_a_nodes(host: str, name: str) -> None:
    assert machine_name(host) == name
    assert NAME.fullmatch(name)


def test_the_state_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert EdgeSettings(name="a").folder == tmp_path / "shoal" / "a"
    assert EdgeSettings(name="a", state_dir=Path("~/x")).folder == Path.home() / "x"
    monkeypatch.delenv("XDG_STATE_HOME")
    assert EdgeSettings(name="a").folder == Path.home() / ".local" / "state" / "shoal" / "a"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "Upper"),
        ("name", "a/b"),
        ("name", ".."),
        ("name", "hub"),
        ("jobs", ["../x"]),
        ("tags", ["Phone"]),
        ("tags", [f"t{n}" for n in range(33)]),
        ("hours", ["9-17"]),
        ("hours", ["08:00-08:00"]),
        ("url", "host:8080"),
        ("poll_wait_s", 0),
        ("threads", -1),
        ("coordinator_timeout_s", -1),
        ("log_form", "xml"),
    ],
)
def test_what_is_no_setting(field: str, value: object) -> None:
    with pytest.raises(ValidationError):
        EdgeSettings.model_validate({field: value})


def test_the_environment_and_what_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_EDGE__NAME", "from-environment")
    monkeypatch.setenv("SHOAL_EDGE__OPTIONS", '{"part": 3}')
    monkeypatch.setenv("SHOAL_EDGE__JOBS", '["x", "y", "x"]')
    monkeypatch.setenv("SHOAL_EDGE__TOKEN", "sht_secret")
    found = load(EdgeSettings, "edge", given={"name": None, "device": "cpu", "jobs": ["z"]})
    assert (found.node, found.options, found.jobs, found.device) == ("from-environment", {"part": 3}, ["z"], "cpu")
    assert "sht_secret" not in repr(found)
    assert found.token.get_secret_value() == "sht_secret"


def test_an_unknown_key_has_a_suggestion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_EDGE__DEVISE", "cpu")
    with pytest.raises(ShoalError) as unknown:
        load(EdgeSettings, "edge")
    assert "device" in unknown.value.hint
    monkeypatch.delenv("SHOAL_EDGE__DEVISE")
    monkeypatch.setenv("SHOAL_EDGE__ZZZ", "cpu")
    with pytest.raises(ShoalError) as foreign:
        load(EdgeSettings, "edge")
    assert foreign.value.hint == "shoal config show lists all settings"


def test_every_setting_is_described() -> None:
    assert [name for name, field in EdgeSettings.model_fields.items() if not field.description] == []


def test_a_node_tells_about_itself_without_loading_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from shoal_edge_client.telemetry.node_info import collect_node_info as collect; "
        "print(collect('cpu'), 'torch' in sys.modules)"
    )
    root = Path(__file__).resolve().parents[2]
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root).stdout
    assert said.strip() == f"{collect_node_info('cpu')} False"
    assert collect_node_info("cpu")["shoal"] == __version__
    assert set(collect_node_info("cpu")) == {"platform", "python", "torch", "device", "shoal"}


def test_tags_and_hours_are_told_with_the_rest() -> None:
    settings = EdgeSettings(tags=["phone", "eu", "phone"], hours=["22:00-06:00"])
    assert settings.tags == ["phone", "eu"]
    told = collect_node_info("cpu", settings.tags, settings.hours)
    assert (told["tags"], told["hours"], told["device"]) == (["phone", "eu"], ["22:00-06:00"], "cpu")
    assert not {"tags", "hours"} & collect_node_info("cpu").keys()


@pytest.mark.parametrize(
    ("name", "value", "text"), [("trainer", "thread", "a thread"), ("split_job", "j", "a split job")]
)
def test_several_processes_train_whole_jobs_outside_this_process(name: str, value: str, text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        EdgeSettings.model_validate({"processes": 2, name: value})
    assert EdgeSettings(processes=2, trainer="process").processes == 2
