"""Files of deploy/: checked by their tools, compared with the code, and run where that needs no engine."""

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
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from shoal import __version__
from shoal.cli import app
from shoal.configuration import ClientSettings
from shoal.jobs.spec import load_job
from shoal_coordinator.settings import Settings
from shoal_edge_client.settings import EdgeSettings
from tests.support.coordinator import OPERATOR, Inside, inside
from tests.support.node import Node
from tests.support.s3 import S3
from tests.support.scenario import problem
from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "shoal"
SECTIONS = {"coordinator": Settings, "edge": EdgeSettings, "client": ClientSettings}


def tool(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A tool of this virtual environment."""
    found = Path(sys.executable).parent / name
    return subprocess.run(
        [found, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return found


DOCKERFILES = [f"{component}/Dockerfile" for component in ("coordinator", "edge_client", "peer")]


@pytest.fixture(scope="module")
def dockerfiles() -> dict[str, str]:
    return {name: (ROOT / name).read_text() for name in DOCKERFILES}


@pytest.fixture
def coordinator(tmp_path: Path) -> Any:
    with inside(tmp_path / "data") as running:
        yield running


# By the tools


def test_hadolint_finds_nothing() -> None:
    found = tool("hadolint", *DOCKERFILES)
    assert (found.returncode, found.stdout) == (0, "")


@pytest.mark.parametrize("name", ["try.sh", "try_compose.sh", "engine.sh", "image.sh"])
def test_the_scripts_are_scripts(name: str) -> None:
    assert subprocess.run(["bash", "-n", DEPLOY / name], check=False).returncode == 0
    assert os.access(DEPLOY / name, os.X_OK) == name.startswith("try"), "what is sourced is not run"


def test_the_compose_file_has_its_form(tmp_path: Path) -> None:
    known = ("--builtin-schema", "vendor.compose-spec")
    assert tool("check-jsonschema", *known, "docker-compose.yml").returncode == 0
    wrong = tmp_path / "compose.yaml"
    wrong.write_text("services: {a: {imagine: b}}\n")
    assert tool("check-jsonschema", *known, str(wrong)).returncode == 1


# Against the code


def test_every_component_has_an_image_that_runs_unprivileged(
    compose: dict[str, Any], dockerfiles: dict[str, str]
) -> None:
    built = {service["build"]["dockerfile"] for service in compose["services"].values() if "build" in service}
    assert built == set(dockerfiles)
    for name, text in dockerfiles.items():
        build, runtime = text.split("\nFROM ${PYTHON_IMAGE}")[1:]
        assert build.startswith(" AS build"), name
        assert runtime.count("USER 10001:10001") == runtime.count("HEALTHCHECK") == 1, name
        assert "--platform linux/amd64,linux/arm64" in text, name
    assert "SHOAL_SKIP_UI=0" in dockerfiles["coordinator/Dockerfile"], "else it has no dashboard"
    extras = {name: re.findall(r"image.sh install (\S+)", text) for name, text in dockerfiles.items()}
    assert extras == {
        "coordinator/Dockerfile": ["coordinator,postgres,s3"],  # no torch
        "edge_client/Dockerfile": ["torch,peer"],
        "peer/Dockerfile": ["torch,peer"],
    }


def test_every_service_is_shut_in(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "cap_add" not in service or name == "postgres", name
        assert not service.get("privileged"), name
        assert {"mem_limit", "cpus", "pids_limit", "ulimits"} <= set(service), name
        assert {"max-size", "max-file"} <= set(service["logging"]["options"]), f"{name}: its log would fill the disk"


SECRETS_OF = {  # services that mount the files of `provision.py`, besides `secrets` and `tokens`, which write them
    "secrets-coordinator": {"coordinator", "coordinator-2", "coordinator-3", "bucket", "tokens"},
    "secrets-postgres": {"postgres"},
    "secrets-s3": {"s3"},
    "secrets-edge-client-1": {"edge-client-1", "tokens"},
    "secrets-edge-client-2": {"edge-client-2", "tokens"},
    "secrets-edge-client-3": {"edge-client-3", "tokens"},
    "secrets-edge-client-gpu": {"edge-client-gpu", "tokens"},
}
RUN_USERS_CODE = ("edge-client-1", "edge-client-2", "edge-client-3", "edge-client-gpu")
FOLDERS = ("coordinator", "postgres", "s3", *RUN_USERS_CODE)


def mounts(service: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """(source, target, read-only) of each volume of a service."""
    found = [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text).split(":") for text in service.get("volumes", [])]
    return [(source, target, options == ["ro"]) for source, target, *options in found]


def test_each_secret_is_seen_by_its_service_alone(compose: dict[str, Any]) -> None:
    """Edge clients run users' code: they must not see what lets them act as operators, or reach database and store."""
    services = compose["services"]
    for volume, allowed in SECRETS_OF.items():
        seen = {name for name, one in services.items() if volume in [source for source, _, _ in mounts(one)]}
        assert seen == allowed | (set() if volume.startswith("secrets-edge-client-") else {"secrets"}), volume
    writers = {(name, source) for name, one in services.items() for source, _, ro in mounts(one) if not ro}
    assert {name for name, source in writers if source.startswith("secrets-")} == {"secrets", "tokens"}
    assert ("tokens", "secrets-coordinator") not in writers
    for name in RUN_USERS_CODE:
        assert set(services[name]["networks"]).isdisjoint(services["postgres"]["networks"]), name
        assert set(services[name]["networks"]).isdisjoint(services["s3"]["networks"]), name
    assert compose["networks"]["storage"]["internal"] is True
    private = set(compose["volumes"]) - {"blobs"} - set(SECRETS_OF) - {f"peer{i}" for i in range(1, 6)}
    for volume in private:
        users = [name for name, one in services.items() if volume in [source for source, _, _ in mounts(one)]]
        assert len(users) == 1, volume


def test_the_compose_file_and_its_first_container_agree_on_secrets(
    compose: dict[str, Any], dockerfiles: dict[str, str], tmp_path: Path
) -> None:
    for folder in FOLDERS:
        (tmp_path / folder).mkdir()
        assert f" /secrets/{folder}" in dockerfiles["coordinator/Dockerfile"], "else its volume belongs to root"
    provision(tmp_path, "secrets")
    for name in RUN_USERS_CODE:
        (tmp_path / name / "node.token").touch()
    for name, service in compose["services"].items():
        words = [*map(str, service.get("environment", {}).values()), *service.get("command", [])]
        for path in re.findall(r"/secrets/[\w./-]+", " ".join(words)):
            folder, file = path.removeprefix("/secrets/").split("/")
            (source,) = [one for one, target, ro in mounts(service) if ro and target == f"/secrets/{folder}"]
            assert source.removeprefix("secrets-") == folder or name in RUN_USERS_CODE, (name, path)
            assert (tmp_path / source.removeprefix("secrets-") / file).exists(), (name, path)


def test_what_is_kept_is_in_named_volumes(compose: dict[str, Any]) -> None:
    """An anonymous volume does not outlive `docker compose down`."""
    for name, service in compose["services"].items():
        for source, target, read_only in mounts(service):
            assert source in compose["volumes"] or (source.startswith("./") and read_only), (name, target)
        if name in RUN_USERS_CODE or name.startswith(("coordinator", "peer")):
            targets = [target for _, target, _ in mounts(service)]
            assert "/data" in targets or name == "peers-init", name


def test_edge_clients_differ_and_are_peers(compose: dict[str, Any]) -> None:
    services = compose["services"]
    settings = [services[name]["environment"] for name in sorted(RUN_USERS_CODE)]
    options = [json.loads(one["SHOAL_EDGE__OPTIONS"]) for one in settings]
    assert sorted(one["part"] for one in options) == list(range(options[0]["parts"]))
    assert {one["parts"] for one in options} == {len(options)}
    for name in RUN_USERS_CODE:
        given = services[name]["environment"]
        assert given["SHOAL_EDGE__NAME"] == name
        assert given["SHOAL_EDGE__PEER_URL"] == f"http://{name}:9001"
        assert given["SHOAL_EDGE__PEER_LISTEN"] == "0.0.0.0:9001"
        assert given["HEALTH_URL"].endswith(":9001"), "healthy without its coordinator too"
    gpu = services["edge-client-gpu"]
    assert gpu["profiles"] == ["gpu"]
    assert gpu["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"] == ["gpu"]
    assert load_job(ROOT / "examples" / "digits.toml").gossip.allowed, "so that they may carry it on"


def assert_setting(name: str) -> None:
    section, _, key = name.removeprefix("SHOAL_").lower().partition("__")
    fields = SECTIONS[section].model_fields
    assert key in fields or key.removesuffix("_file") in fields, name


def test_every_variable_is_a_setting(compose: dict[str, Any], dockerfiles: dict[str, str]) -> None:
    said = [name for service in compose["services"].values() for name in service.get("environment", {})]
    said += re.findall(r"\b(SHOAL_\w+__\w+)=", "".join(dockerfiles.values()))
    found = [name for name in said if name.startswith("SHOAL_")]
    assert len(found) >= 8
    for name in found:
        assert_setting(name)


def test_no_secret_stands_in_a_file(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        for key in service.get("environment", {}):
            assert not re.search(r"TOKEN$|PASSWORD$|SECRET$|DATABASE_URL$", key), (name, key)


def test_what_waits_for_what_is_there(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for name, service in services.items():
        assert set(service.get("depends_on", {})) <= set(services), name
        assert set(service.get("networks", [])) <= set(compose["networks"]), name
        assert "networks" in service or service["network_mode"] == "none", name


def test_the_first_command_of_the_peers_works(compose: dict[str, Any], tmp_path: Path) -> None:
    services = compose["services"]
    words = [word.replace("/examples", str(ROOT / "examples")) for word in services["peers-init"]["command"]]
    made = CliRunner().invoke(app.app, [word.replace("/peers", str(tmp_path), 1) for word in words])
    assert made.exit_code == 0, made.output
    for i in range(1, 6):
        assert services[f"peer{i}"]["command"][:3] == ["peer", "run", "/data"]
        assert mounts(services[f"peer{i}"]) == [(f"peer{i}", "/data", False)], "no peer sees another's key"
        assert (f"peer{i}", f"/peers/peer{i}", False) in mounts(services["peers-init"])
        assert (tmp_path / f"peer{i}" / "key.pem").exists()


def in_context(path: str) -> bool:
    """Return whether .dockerignore lets a file through: the last line that matches it or its folder decides."""
    allowed = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.partition("#")[0].strip()
        parents = ["/".join(path.split("/")[:i]) for i in range(1, path.count("/") + 2)]
        names = [pattern.removeprefix("!"), pattern.removeprefix("!").removeprefix("**/")]
        whole = any(part == names[1] for part in path.split("/")) if pattern.startswith("**/") else False
        if pattern and (whole or any(fnmatch(parent, names[0]) for parent in parents)):
            allowed = pattern.startswith("!")
    return allowed


def test_the_images_get_what_the_wheel_is_built_from(dockerfiles: dict[str, str], tmp_path: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    files = [name for name in listed.stdout.splitlines() if in_context(name)]
    assert {"deploy/provision.py", "deploy/health.py", "deploy/image.sh"} <= set(files)
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
        "shoal_coordinator/api/app.py",
        "shoal_coordinator/storage/migrations/env.py",
        "shoal_edge_client/agent.py",
        "shoal_peer/process.py",
    ):
        assert one in held
    for copied in re.findall(r"^COPY (deploy/.*) /opt/deploy/$", "".join(dockerfiles.values()), re.MULTILINE):
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
    """Helm renders it; this test checks without Helm that every value is used."""
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
        named = path[path[0] == "root" :]  # a named template is given the chart's root, a part's values, and some words
        named = named[named[:1] in {("Values",), ("part",)} :]
        own = {"Release", "Chart", "Files", "prefix", "settings", "component", "name"}
        assert not named or named[0] in own or named in known, path
    said = {word for path in used for word in path} | roots
    whole = {"limits", "requests", "annotations"}  # are handed on as they stand
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


# Processes in the containers


def health(**environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(DEPLOY / "health.py")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


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


def provision(root: Path, *words: str) -> None:
    for folder in FOLDERS:
        (root / folder).mkdir(exist_ok=True)
    command = [sys.executable, str(DEPLOY / "provision.py"), *words]
    subprocess.run(command, env={**os.environ, "SECRETS": str(root)}, check=True, timeout=PATIENCE_S)


def written(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


def test_secrets_are_made_once(tmp_path: Path) -> None:
    provision(tmp_path, "secrets")
    made = written(tmp_path)
    ours = {f"coordinator/{name}" for name in ("operator.token", "database.url", "blobs.secret")}
    assert set(made) == ours | {"postgres/password", "s3/s3.json"}, "nothing for edge clients"
    assert made["coordinator/blobs.secret"].strip() in made["s3/s3.json"]
    assert made["postgres/password"].strip() in made["coordinator/database.url"]
    provision(tmp_path, "secrets")
    assert made == written(tmp_path)


def test_the_bucket_is_made_once_and_a_coordinator_uses_it(tmp_path: Path) -> None:
    store = S3()
    try:
        provision(tmp_path, "secrets")
        for _ in range(2):
            provision(tmp_path, "bucket", store.endpoint, "shoal")
        secret = (tmp_path / "coordinator" / "blobs.secret").read_text().strip()
        url = f"s3://shoal?endpoint={store.endpoint}"
        with inside(tmp_path / "data", blobs=url, blobs_key_id="shoal", blobs_secret=secret) as running:
            assert running.coordinator.blobs.store.direct
    finally:
        store.close()


def test_the_profile_s3_has_what_the_coordinator_is_told(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert {name for name, one in services.items() if "s3" in one.get("profiles", [])} == {"s3", "bucket"}
    assert services["coordinator"]["depends_on"]["bucket"]["required"] is False, "without the profile there is none"
    key_id = services["coordinator"]["environment"]["SHOAL_COORDINATOR__BLOBS_KEY_ID"]
    assert f'BLOBS_KEY_ID = "{key_id}"' in (DEPLOY / "provision.py").read_text()
    for text in ((ROOT / "docker-compose.yml").read_text(), (ROOT / "docs" / "how-to" / "deploy.md").read_text()):
        assert set(re.findall(r"s3://shoal\?endpoint=http://s3\S*'", text)) == {
            "s3://shoal?endpoint=http://s3:8333&presign=no'"
        }, "nodes cannot reach the store"


def test_each_node_has_a_token_for_itself_alone(compose: dict[str, Any], coordinator: Inside, tmp_path: Path) -> None:
    """Users' code in the containers reads it. Each start makes others: these are not valid for long."""
    command, _, *nodes = compose["services"]["tokens"]["command"]
    assert set(nodes) == set(RUN_USERS_CODE)
    root = tmp_path / "secrets"
    (root / "coordinator").mkdir(parents=True)
    (root / "coordinator" / "operator.token").write_text(OPERATOR)
    provision(root, command, coordinator.url, *nodes)
    first = written(root)
    provision(root, command, coordinator.url, *nodes)
    assert len({*written(root).values(), *first.values()}) == 2 * len(nodes) + 1
    for token in coordinator.get("/tokens")["tokens"]:
        assert (token["uses"], token["name"] in nodes) == (1, True)
        assert datetime.fromisoformat(token["expires_at"]) < datetime.now(UTC) + timedelta(hours=2)
    for name in nodes:
        token = (root / name / "node.token").read_text().strip()
        body = {"name": "another", "token": token}
        problem(coordinator.request("POST", "/api/v1/enrol", json=body), 401, "token.invalid")
        node = Node(lambda: coordinator.url, name, token, {})
        node.enter()
        node.client.close()


# Monitoring


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
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text()
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
