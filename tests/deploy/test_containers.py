"""What is in deploy/: checked by the tools of its kinds, held to what the code has, run where that needs no engine."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from shoal import __version__
from shoal.cli import app
from shoal.settings import ClientSettings
from shoal_coordinator.settings import Settings
from shoal_edge_client.settings import EdgeSettings
from tests.coordinator.node import Node
from tests.coordinator.s3 import S3
from tests.coordinator.server import OPERATOR, Inside, inside

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "shoal"
SECTIONS = {"coordinator": Settings, "edge": EdgeSettings, "client": ClientSettings}


def tool(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A tool of this virtual environment."""
    found = Path(sys.executable).parent / name
    return subprocess.run([found, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found


@pytest.fixture(scope="module")
def dockerfile() -> str:
    return (DEPLOY / "Dockerfile").read_text()


@pytest.fixture
def coordinator(tmp_path: Path) -> Any:
    with inside(tmp_path / "data") as running:
        yield running


# By the tools


def test_hadolint_finds_nothing() -> None:
    found = tool("hadolint", "deploy/Dockerfile")
    assert (found.returncode, found.stdout) == (0, "")


@pytest.mark.parametrize("name", ["try.sh", "try_compose.sh", "engine.sh"])
def test_the_scripts_are_scripts(name: str) -> None:
    assert subprocess.run(["bash", "-n", DEPLOY / name], check=False).returncode == 0
    assert os.access(DEPLOY / name, os.X_OK) == name.startswith("try"), "what is sourced is not run"


def test_the_compose_file_has_its_form(tmp_path: Path) -> None:
    known = ("--builtin-schema", "vendor.compose-spec")
    assert tool("check-jsonschema", *known, "deploy/compose.yaml").returncode == 0
    wrong = tmp_path / "compose.yaml"
    wrong.write_text("services: {a: {imagine: b}}\n")
    assert tool("check-jsonschema", *known, str(wrong)).returncode == 1


# Against the code


def test_every_target_is_there_and_runs_as_nobody(compose: dict[str, Any], dockerfile: str) -> None:
    stages = dict(re.findall(r"^FROM (\S+) AS (\S+)$", dockerfile, re.MULTILINE))
    targets = {service["build"]["target"] for service in compose["services"].values() if "build" in service}
    assert targets == {"coordinator", "edge_client", "peer"}
    assert {name for parent, name in re.findall(r"^FROM (\S+) AS (\S+)$", dockerfile, re.MULTILINE)} >= targets
    assert set(stages) >= {"runtime"}
    runtime = dockerfile.partition(" AS runtime")[2]
    assert runtime.index("USER 10001:10001") < runtime.index("FROM runtime AS coordinator")
    assert "USER" not in runtime.replace("USER 10001:10001", "")
    assert runtime.count("HEALTHCHECK") == 3
    assert "curl" not in dockerfile


def test_every_service_is_shut_in(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "cap_add" not in service or name == "postgres", name
        assert not service.get("privileged"), name


def variables(compose: dict[str, Any], dockerfile: str) -> list[str]:
    found = [name for service in compose["services"].values() for name in service.get("environment", {})]
    return [name for name in found + re.findall(r"\b(SHOAL_\w+)=", dockerfile) if name.startswith("SHOAL_")]


def test_every_variable_is_a_setting(compose: dict[str, Any], dockerfile: str) -> None:
    found = variables(compose, dockerfile)
    assert len(found) >= 8
    for name in found:
        section, _, key = name.removeprefix("SHOAL_").lower().partition("__")
        fields = SECTIONS[section].model_fields
        assert key in fields or key.removesuffix("_file") in fields, name


def test_no_secret_stands_in_a_file(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        for key in service.get("environment", {}):
            assert not re.search(r"TOKEN$|PASSWORD$|SECRET$|DATABASE_URL$", key), (name, key)


def test_what_waits_for_what_is_there(compose: dict[str, Any]) -> None:
    services, volumes = compose["services"], compose["volumes"]
    for name, service in services.items():
        assert set(service.get("depends_on", {})) <= set(services), name
        for volume in service.get("volumes", []):
            source, _, target = volume.partition(":")
            assert not target or source in volumes or source.startswith("./"), (name, volume)
    assert services["edge_client"]["scale"] == 3
    assert not any("container_name" in service for service in services.values()), "it could not be scaled"
    peers = [one for one in services.values() if "peers" in one.get("profiles", []) and "run" in one["command"]]
    assert len(peers) == 5


def test_the_first_command_of_the_peers_works(compose: dict[str, Any], tmp_path: Path) -> None:
    words = compose["services"]["peers_first"]["command"]
    shutil.copy(DEPLOY / "peers.toml", tmp_path)
    made = CliRunner().invoke(app.app, [word.replace("/data", str(tmp_path)) for word in words])
    assert made.exit_code == 0, made.output
    for i in range(1, 6):
        run = compose["services"][f"peer{i}"]["command"]
        assert Path(run[2].replace("/data", str(tmp_path)), "key.pem").exists(), run


def in_context(path: str) -> bool:
    """Whether .dockerignore lets a file through: the last line that matches it or a folder above it decides."""
    allowed = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.partition("#")[0].strip()
        parents = ["/".join(path.split("/")[:i]) for i in range(1, path.count("/") + 2)]
        names = [pattern.removeprefix("!"), pattern.removeprefix("!").removeprefix("**/")]
        whole = any(part == names[1] for part in path.split("/")) if pattern.startswith("**/") else False
        if pattern and (whole or any(fnmatch(parent, names[0]) for parent in parents)):
            allowed = pattern.startswith("!")
    return allowed


def test_the_image_gets_what_the_wheel_is_built_from(dockerfile: str, tmp_path: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    files = [name for name in listed.stdout.splitlines() if in_context(name)]
    assert {"deploy/first.py", "deploy/health.py"} <= set(files)
    assert not [name for name in files if name.startswith(("tests/", ".git/", "benchmarks/", "docs/"))]
    for name in files:
        (tmp_path / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / "src" / name)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "wheels"],
        cwd=tmp_path / "src",
        env={**os.environ, "SHOAL_SKIP_UI": "1"},
        capture_output=True,
        check=True,
    )
    (wheel,) = (tmp_path / "wheels").iterdir()
    held = zipfile.ZipFile(wheel).namelist()
    for one in (
        "shoal_coordinator/app.py",
        "shoal_coordinator/migrations/env.py",
        "shoal_edge_client/agent.py",
        "shoal_peer/app.py",
    ):
        assert one in held
    for copied in re.findall(r"^COPY (deploy/.*) /opt/deploy/$", dockerfile, re.MULTILINE):
        assert set(shlex.split(copied)) <= set(files)


# The chart


def leaves(values: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(values, dict) and values:
        for name, inner in values.items():
            yield from leaves(inner, (*path, name))
    else:
        yield path


def test_the_chart_is_of_this_release() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["apiVersion"], chart["appVersion"]) == ("v2", __version__)


def test_the_chart_uses_every_value_and_no_other() -> None:
    """Whoever renders it is Helm; that nothing is said in vain can be seen without."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    templates = "".join(path.read_text() for path in sorted((CHART / "templates").iterdir()))
    roots = {"Values", "Release", "Chart", "prefix", "settings"}
    used = {
        tuple(word for word in found.strip(".").split(".") if word)
        for code in re.findall(r"\{\{-?(.*?)-?\}\}", re.sub(r"/\*.*?\*/", "", templates), re.DOTALL)
        for found in re.findall(r"(?<![\w)])\.[A-Za-z][\w.]*", re.sub(r'"[^"]*"', "", code))
    }
    known = {path[i:j] for path in leaves(values) for i in range(len(path)) for j in range(i + 1, len(path) + 1)}
    for path in used:
        named = path[1:] if path[0] == "Values" else path
        assert path[0] in {"Release", "Chart", "prefix", "settings"} or named in known, path
    said = {word for path in used for word in path} | roots
    whole = {"limits", "requests"}  # are handed on as they stand
    for path in leaves(values):
        assert path[-1] in said or whole & set(path), path


def test_what_the_chart_sets_are_settings_and_it_shuts_in() -> None:
    for name in ("coordinator.yaml", "edge-clients.yaml"):
        text = (CHART / "templates" / name).read_text()
        assert 'include "shoal.shut-in"' in text
        assert 'include "shoal.pod"' in text
        for variable in re.findall(r"SHOAL_(\w+__\w+)", text):
            section, _, key = variable.lower().partition("__")
            fields = SECTIONS[section].model_fields
            assert key in fields or key.removesuffix("_file") in fields, variable
    helpers = (CHART / "templates" / "_helpers.tpl").read_text()
    for line in (
        "runAsNonRoot: true",
        "readOnlyRootFilesystem: true",
        "drop: [ALL]",
        "allowPrivilegeEscalation: false",
    ):
        assert line in helpers


# What runs in the containers


def health(**environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(DEPLOY / "health.py")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)


def test_a_container_is_well_when_its_process_answers(coordinator: Inside) -> None:
    host = coordinator.url.removeprefix("http://")
    assert health(HEALTH_URL=f"{coordinator.url}/healthz").returncode == 0
    assert health(SHOAL_EDGE__URL=f"{coordinator.url}/").returncode == 0
    assert health(HEALTH_URL=f"tcp://{host}").returncode == 0
    coordinator.coordinator.ready = False
    found = health(HEALTH_URL=f"{coordinator.url}/readyz")
    assert (found.returncode, "503" in found.stderr) == (1, True)
    coordinator.coordinator.ready = True


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/healthz", "tcp://127.0.0.1:9", "", "nonsense"])
def test_else_it_is_not(url: str) -> None:
    found = health(HEALTH_URL=url)
    assert found.returncode == 1
    assert found.stderr.strip()


def first(*words: str) -> None:
    subprocess.run([sys.executable, str(DEPLOY / "first.py"), *words], check=True, timeout=30)


def test_what_is_needed_first_is_made_once(tmp_path: Path) -> None:
    first("secrets", str(tmp_path))
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert set(made) == {"postgres.password", "operator.token", "database.url", "blobs.secret", "s3.json"}
    assert made["blobs.secret"].strip() in made["s3.json"]
    assert made["postgres.password"].strip() in made["database.url"]
    first("secrets", str(tmp_path))
    assert made == {path.name: path.read_text() for path in tmp_path.iterdir()}


def test_the_bucket_is_made_once_and_a_coordinator_uses_it(tmp_path: Path) -> None:
    store = S3()
    try:
        first("secrets", str(tmp_path))
        for _ in range(2):
            first("bucket", str(tmp_path), store.endpoint, "shoal")
        url, secret = f"s3://shoal?endpoint={store.endpoint}", (tmp_path / "blobs.secret").read_text().strip()
        with inside(tmp_path / "data", blobs=url, blobs_key_id="shoal", blobs_secret=secret) as running:
            assert running.coordinator.blobs.direct
    finally:
        store.close()


def test_the_profile_s3_has_what_the_coordinator_is_told(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert {name for name, one in services.items() if "s3" in one.get("profiles", [])} == {"s3", "bucket"}
    assert services["coordinator"]["depends_on"]["bucket"]["required"] is False, "without the profile there is none"
    key_id = services["coordinator"]["environment"]["SHOAL_COORDINATOR__BLOBS_KEY_ID"]
    assert f'BLOBS_KEY_ID = "{key_id}"' in (DEPLOY / "first.py").read_text()


def test_one_token_lets_many_nodes_in(coordinator: Inside, tmp_path: Path) -> None:
    folder = tmp_path / "first"
    folder.mkdir()
    (folder / "operator.token").write_text(OPERATOR)
    first("token", str(folder), coordinator.url)
    token = (folder / "node.token").read_text()
    for name in ("a", "b", "c"):
        node = Node(lambda: coordinator.url, name, token.strip(), {})
        node.enter()
        node.client.close()
    first("token", str(folder), "http://127.0.0.1:9")  # there is one: nobody is asked
    assert (folder / "node.token").read_text() == token


# What watches them


METRIC = re.compile(r"\b(?:shoal|process)_\w+")
ALONE_LACKS = {"shoal_replica_leader"}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names of all series that a coordinator exports after a job."""
    with inside(tmp_path_factory.mktemp("exported") / "data") as coordinator:
        coordinator.begin("main", nodes=1, rounds=1)
        node = Node(lambda: coordinator.url, "n0", coordinator.token(), {"main": 10})
        node.start()
        node.finish()
        text = coordinator.request("GET", "/metrics").text
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    endings = {"histogram": ("_bucket", "_count", "_sum"), "summary": ("_count", "_sum")}
    return {name + ending for name, kind in kinds.items() for ending in endings.get(kind, ("",))}


def test_the_board_draws_what_there_is(exported: set[str]) -> None:
    board = json.loads((DEPLOY / "grafana.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    drawn = {name for text in asked for name in METRIC.findall(text)}
    assert drawn <= exported
    own = {re.sub("_(bucket|count|sum)$", "", name) for name in exported if name.startswith("shoal_")}
    assert own <= {re.sub("_(bucket|count|sum)$", "", name) for name in drawn}, "every number of our own is drawn"
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_every_metric_is_documented(exported: set[str]) -> None:
    text = (ROOT / "docs" / "operation.md").read_text()
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `shoal_")]
    written = {name for row in rows for name in METRIC.findall(row) if not name.startswith("shoal_replica")}
    own = {re.sub("_(bucket|count|sum)$", "", name) for name in exported if name.startswith("shoal_")}
    assert written == own


def test_alert_rules_ask_for_what_there_is(exported: set[str]) -> None:
    groups = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) > 0
    for rule in rules:
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}, rule["alert"]
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule["expr"].count("(") == rule["expr"].count(")")
        assert set(METRIC.findall(rule["expr"])) <= exported | ALONE_LACKS, rule["alert"]
