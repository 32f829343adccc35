"""Commands at a coordinator: what they ask, and what people read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.commands.nodes import device_text
from tests.cli.command_cases import COMMANDS, JOB, MODEL, export_answers, job_answers, node_answers, run_answers
from tests.cli.conftest import Shoal, envelope
from tests.support.coordinator_views import a_job, a_job_event, a_node, a_version
from tests.support.fake_coordinator import FakeCoordinator, Problem, at, raw

pytestmark = pytest.mark.usefixtures("quick")

CONNECTIONS = 100
"""More than two runs can make: a stream that has ended is opened again while its last event is still looked at."""


# Jobs and nodes
def test_the_list_of_jobs(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    job_answers(fake, place)
    said = shoal("jobs", "list", env=at(fake)).stdout
    digits, other = (next(row for row in said.splitlines() if row.startswith(n)) for n in ("digits", "other"))
    for part in ("running", "2 of 5", "93.1 %", "123 kB", "235 kB", "fedavg / rounds"):
        assert part in digits
    assert not any(line.endswith(" ") for line in said.splitlines()), "no blanks where no terminal shows them"
    assert other.split()[1:6] == ["waiting", "2", "of", "5", "–"]


def test_a_job_without_a_number_of_versions(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    """Where versions come as they like, there is no number that they are of."""
    job_answers(fake, place)
    fake.answers["GET /jobs"] = {"jobs": [a_job(version=7, versions=None)]}
    fake.answers["GET /jobs/digits"] = a_job(version=7, versions=None, title="digits")
    assert "None" not in shoal("jobs", env=at(fake)).stdout
    lines = shoal("jobs", "show", "digits", env=at(fake)).stdout.splitlines()
    assert [line.split() for line in lines[:1]] == [["job", "digits"]], "a title that is the name is not said twice"
    assert any(line.split() == ["version", "7,", "about", "12", "s", "left"] for line in lines)
    assert not any("None" in line for line in lines)


def test_a_job_that_was_rebuilt_says_so(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    job_answers(fake, place)
    assert "rebuilt" not in shoal("jobs", "show", "digits", env=at(fake)).stdout
    fake.answers["GET /jobs/digits"] = a_job(restored_from={"node": "b", "version": 7, "term": 1002})
    said = shoal("jobs", "show", "digits", env=at(fake)).stdout
    assert "from b at version 7, term 1002 (what was before is not known here)" in said


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        ("jobs --url {} --token sho_g", "GET /api/v1/jobs"),
        ("jobs --url {} --token sho_g list", "GET /api/v1/jobs"),
        ("jobs --url http://127.0.0.1:1 --token sho_g list --url {}", "GET /api/v1/jobs"),
        ("jobs --token sho_x show digits --token sho_g --url {}", "GET /api/v1/jobs/digits"),
        ("nodes --url {} --token sho_g", "GET /api/v1/nodes"),
        ("token --url {} --token sho_g create", "POST /api/v1/tokens"),
    ],
)
def test_options_of_a_group_hold_for_its_command(
    shoal: Shoal, fake: FakeCoordinator, place: Path, arguments: str, asked: str
) -> None:
    job_answers(fake, place)
    fake.answers |= {"GET /nodes": {"nodes": []}, "POST /tokens": {"token": "sht_x", "expires_at": None}}
    result = shoal(*arguments.format(fake.url).split())
    assert result.exit_code == 0, result.output
    found = next(one for one in fake.asked if f"{one.method} {one.path}" == asked)
    assert found.headers["Authorization"] == "Bearer sho_g"


def test_no_jobs_yet(shoal: Shoal, fake: FakeCoordinator) -> None:
    fake.answers["GET /jobs"] = {"jobs": []}
    assert "shoal run JOB.toml" in shoal("jobs", "list", env=at(fake)).stdout


def test_one_job(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    job_answers(fake, place)
    said = shoal("jobs", "show", "digits", "--events", "2", env=at(fake)).stdout
    for part in ("Digits", "round 3: 1 reports", "about 12 s left", "4,810 parameters", "node-2", "lost [red]node[/]"):
        assert part in said
    assert [asked.query for asked in fake.asked if asked.path.endswith("/events")] == ["limit=2"]


def test_a_best_version_that_one_node_measured_is_marked(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    job_answers(fake, place)
    for nodes, mark in ((1, "measured by one node alone"), (2, "")):
        told = a_job(best={"accuracy": 0.9, "version": 2, "nodes": nodes})
        fake.answers |= {"GET /jobs/digits": told, "GET /jobs": {"jobs": [told]}}
        said = shoal("jobs", "show", "digits", env=at(fake)).stdout
        assert ("measured by one node alone" in said) == bool(mark)
        listed = shoal("jobs", "list", env=at(fake)).stdout
        assert ("(1 node)" in listed) == bool(mark)


def test_a_diverged_job_can_be_shown(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    job_answers(fake, place)
    fake.answers["GET /jobs/digits"] = a_job(metrics={"eval/accuracy": "NaN", "eval/loss": "Infinity"}, best=None)
    said = shoal("jobs", "show", "digits", env=at(fake)).stdout
    assert "NaN" in said
    assert "Infinity" in said


@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        ("pause digits", {"why": ""}),
        ("pause digits --why lunch", {"why": "lunch"}),
        ("resume digits", {"why": ""}),
        ("stop digits", {"why": "", "when": "now"}),
        ("stop digits --when round --why enough", {"why": "enough", "when": "round"}),
    ],
)
def test_jobs_do_as_told(
    shoal: Shoal, fake: FakeCoordinator, place: Path, arguments: str, body: dict[str, str]
) -> None:
    job_answers(fake, place)
    assert shoal("jobs", *arguments.split(), env=at(fake)).exit_code == 0
    assert fake.asked[-1].path == f"/api/v1/jobs/digits/{arguments.split(maxsplit=1)[0]}"
    assert fake.asked[-1].json() == body


# Away and back
RETURNING = a_job(mode="returning", mode_since="2026-01-02T03:04:09.000Z", state_why="0 of 4 nodes have handed back")


@pytest.mark.usefixtures("sockets")
def test_a_job_whose_coordinator_is_dead_is_switched_by_a_node(shoal: Shoal) -> None:
    nowhere = {"SHOAL_CLIENT__URL": "http://127.0.0.1:9", "SHOAL_CLIENT__TOKEN": "sho_x"}
    said = envelope(shoal("switch", "digits", "gossip", "--json", env=nowhere))["error"]
    assert said["code"] == "network.unreachable"
    assert "shoal switch digits gossip --via PEER_URL --key DATA/coordinator.pem" in said["hint"]
    assert "--via" not in envelope(shoal("switch", "digits", "server", "--json", env=nowhere))["error"]["hint"]


def test_a_job_is_sent_away(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    job_answers(fake, place)
    result = shoal("switch", "digits", "gossip", "--why", "maintenance", "--wait", env=at(fake))
    assert result.exit_code == 0
    assert fake.asked[-1].path == "/api/v1/jobs/digits/switch"
    assert fake.asked[-1].json() == {"to": "gossip", "why": "maintenance"}
    assert "gossip: led by its peers (since 2026-01-02 03:04:07 UTC)" in result.stdout


def test_the_way_back_is_waited_for(shoal: Shoal, fake: FakeCoordinator) -> None:
    back = a_job(version=3, mode_since="2026-01-02T03:04:12.000Z")
    fake.answers = {"POST /jobs/digits/switch": RETURNING, "GET /jobs/digits": RETURNING}

    def script() -> Iterator[tuple[str, Any]]:
        yield "hello", {}
        yield "job", RETURNING
        fake.answers["GET /jobs/digits"] = back
        yield "job", back

    fake.events = [script()]
    result = shoal("switch", "digits", "server", "--wait", env=at(fake))
    assert result.exit_code == 0
    assert "server: led by the coordinator (since 2026-01-02 03:04:12 UTC)" in result.stdout
    assert "3 of 5" in result.stdout
    fake.events = []
    assert envelope(shoal("switch", "digits", "server", "--json", env=at(fake)))["data"]["job"]["mode"] == "returning"


def test_a_way_back_that_takes_too_long_ends_with_4(shoal: Shoal, fake: FakeCoordinator) -> None:
    fake.answers = {"POST /jobs/digits/switch": RETURNING, "GET /jobs/digits": RETURNING}
    fake.events = [[("hello", {})]]
    result = shoal("switch", "digits", "server", "--wait", "--timeout-s", "0.1", env=at(fake))
    assert result.exit_code == 4
    assert "digits has not switched to server within 0.1 s" in result.stderr


def test_a_job_that_is_stopped_on_its_way_back_ends_with_1(shoal: Shoal, fake: FakeCoordinator) -> None:
    stopped = RETURNING | {"state": "stopped", "state_why": "enough"}
    fake.answers = {"POST /jobs/digits/switch": RETURNING, "GET /jobs/digits": stopped}
    fake.events = [[("hello", {}), ("job", stopped)]]
    result = shoal("switch", "digits", "server", "--wait", env=at(fake))
    assert result.exit_code == 1
    assert "digits is stopped: enough" in result.stderr


def test_a_switch_that_is_refused_says_what_to_do(shoal: Shoal, fake: FakeCoordinator) -> None:
    fake.answers = {
        "POST /jobs/digits/switch": Problem(409, "gossip.not-allowed", "no", "allowed = true under [gossip]")
    }
    result = shoal("switch", "digits", "gossip", env=at(fake))
    assert result.exit_code == 1
    assert "allowed = true under [gossip]" in result.stderr
    assert shoal("switch", "digits", "nowhere", env=at(fake)).exit_code == 2


def test_where_a_job_is_stands_in_the_list(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    job_answers(fake, place)
    fake.answers["GET /jobs"] = {"jobs": [RETURNING]}
    fake.answers["GET /jobs/digits/nodes"] = {"nodes": [a_node(is_gossiping=True), a_node("node-2")]}
    assert "running (returning)" in shoal("jobs", env=at(fake)).stdout
    lines = shoal("jobs", "show", "digits", env=at(fake)).stdout.splitlines()
    assert ["training (gossip)" in line for line in lines if line.startswith("node-")] == [True, False]


def test_the_list_of_nodes(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    node_answers(fake, place)
    lines = shoal("nodes", "list", env=at(fake)).stdout.splitlines()
    assert any(line.split()[:6] == ["a", "online", "digits", "1", "s", "ago"] for line in lines)
    assert any(line.split()[:2] == ["b", "gone"] for line in lines)


@pytest.mark.parametrize(
    ("info", "text"),
    [
        ({}, ""),
        ({"device": "cpu"}, "cpu"),
        (
            {"device": "cuda:0–cuda:3", "hardware": "4 × NVIDIA H200", "processes": 4, "parallel": "pipeline"},
            "cuda:0–cuda:3, 4 × NVIDIA H200, 4 processes, pipeline",
        ),
    ],
)
def test_the_devices_of_a_node_in_words(info: dict[str, Any], text: str) -> None:
    assert device_text(info) == text


def test_removing_a_node_wants_a_yes(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    node_answers(fake, place)
    refused = shoal("nodes", "remove", "a", env=at(fake))
    assert refused.exit_code == 2
    assert "--yes" in refused.stderr
    assert [asked.method for asked in fake.asked] == ["GET"]
    assert shoal("nodes", "remove", "a", "--yes", env=at(fake)).stdout == "a is removed\n"
    assert fake.asked[-1].method == "DELETE"


@pytest.mark.parametrize(("said", "code", "asked"), [("y\n", 0, 1), ("n\n", 1, 0), ("", 1, 0)])
def test_a_person_is_asked(
    shoal: Shoal, fake: FakeCoordinator, place: Path, monkeypatch: pytest.MonkeyPatch, said: str, code: int, asked: int
) -> None:
    node_answers(fake, place)
    monkeypatch.setattr("shoal.cli.commands.nodes.is_person", lambda: True)
    result = shoal("nodes", "remove", "a", env=at(fake), stdin=said)
    assert (result.exit_code, [one.method for one in fake.asked].count("DELETE")) == (code, asked)
    assert "Revoke" in result.stdout


def test_nobody_is_asked_about_a_node_that_is_none(
    shoal: Shoal, fake: FakeCoordinator, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.cli.commands.nodes.is_person", lambda: True)
    fake.answers = {"GET /nodes/aa": Problem(404, "node.unknown", "no node is called 'aa'", "did you mean a?")}
    result = shoal("nodes", "remove", "aa", env=at(fake), stdin="y\n")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "did you mean a?" in result.stderr


@pytest.mark.parametrize(("loopback", "told"), [(True, "--host 0.0.0.0"), (False, "instead of 127.0.0.1")])
def test_a_token_for_elsewhere_is_no_use_where_only_this_machine_is_heard(
    shoal: Shoal, fake: FakeCoordinator, loopback: bool, told: str
) -> None:
    fake.answers = {"POST /tokens": {"token": "sht_x", "expires_at": None, "loopback": loopback}}
    assert told in shoal("token", "create", env=at(fake)).stdout


@pytest.mark.parametrize(
    ("arguments", "body", "use"),
    [
        ("", {}, "shoal join {url} --token sht_x --learner FILE.py:learner"),
        ("--name a --uses 2", {"uses": 2, "name": "a"}, "--name a"),
        ("--role operator --ttl-s 5", {"role": "operator", "ttl_s": 5.0}, "shoal jobs list --url {url}"),
        ("--role viewer", {"role": "viewer"}, "open {url}"),
    ],
)
def test_tokens(
    shoal: Shoal, fake: FakeCoordinator, place: Path, arguments: str, body: dict[str, object], use: str
) -> None:
    COMMANDS["token create"].prepare(fake, place)
    result = shoal("token", "create", *arguments.split(), env=at(fake))
    assert result.exit_code == 0
    assert fake.asked[-1].json() == {"role": "node", "uses": 1, "ttl_s": None, "name": None} | body
    assert use.format(url=fake.url) in result.stdout


# Run
def test_run_submits_and_watches(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    run_answers(fake, place)
    fake.answers |= {"POST /jobs": a_job(name="mine"), "GET /jobs/mine": a_job(name="mine", state="done")}
    fake.answers["GET /jobs/mine/nodes"] = {"nodes": [a_node()]}
    result = shoal("run", "job.toml", "--set", "algorithm.name=fedsgd", "--name", "mine", env=at(fake))
    assert result.exit_code == 0, result.output
    assert fake.asked[0].json() == {
        "spec": {
            "name": "mine",
            "rounds": 2,
            "learner": "shoal.learn.digits:learner",
            "algorithm": {"name": "fedsgd"},
        }
    }
    assert "93.1 %" in result.stdout
    assert "node-1" in result.stdout


def test_run_detached_returns_at_once(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    run_answers(fake, place)
    assert envelope(shoal("run", "job.toml", "--detach", "--json", env=at(fake)))["data"].keys() == {"job"}
    assert [asked.method for asked in fake.asked] == ["POST"]


@pytest.mark.parametrize("state", ["stopped", "failed"])
def test_a_job_that_comes_to_nothing_ends_with_1(shoal: Shoal, fake: FakeCoordinator, place: Path, state: str) -> None:
    run_answers(fake, place)
    ended = a_job(state=state, state_why="enough")
    fake.answers["GET /jobs/digits"] = ended
    fake.events = [[("job", ended)]] * CONNECTIONS
    result = shoal("run", "job.toml", env=at(fake))
    assert result.exit_code == 1
    assert f"digits is {state}: enough" in result.stderr
    assert "2 of 5" in result.stdout
    found = envelope(shoal("run", "job.toml", "--json", env=at(fake)))
    assert found["error"]["code"] == f"job.{state}"


def test_a_job_that_takes_too_long_ends_with_4(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    run_answers(fake, place)
    fake.answers["GET /jobs/digits"] = a_job()
    fake.events = [[("hello", {})]]
    result = shoal("run", "job.toml", "--timeout-s", "0.1", env=at(fake))
    assert result.exit_code == 4
    assert "shoal jobs show digits" in result.stderr


def test_what_was_missed_while_the_stream_was_broken_is_asked_for(
    shoal: Shoal, fake: FakeCoordinator, place: Path
) -> None:
    """The stream never says that the job is done; the page that is read after each reconnection does."""
    run_answers(fake, place)
    answers = [a_job(), a_job(state="done"), a_job(state="done")]
    fake.answers["GET /jobs/digits"] = lambda asked: answers.pop(0)
    fake.events = [[("hello", {})], [("hello", {})]]
    assert shoal("run", "job.toml", env=at(fake)).exit_code == 0


def test_warnings_are_shown_and_decisions_with_verbose(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    run_answers(fake, place)
    told = [
        ("job_event", {"job": "digits", **a_job_event(1)}),
        ("job_event", {"job": "digits", **a_job_event(2, kind="refusal", text="node-3: [b]NaN")}),
        ("version", {"job": "digits", **a_version(1)}),
    ]
    script = [*told, ("job", a_job(state="done"))]
    fake.events = [script] * CONNECTIONS
    quiet = shoal("run", "job.toml", env=at(fake)).stderr
    assert quiet == "warning: node-3: [b]NaN\n"
    loud = shoal("run", "job.toml", "--verbose", env=at(fake)).stderr
    assert "decision version 1: 4 of 4 reports" in loud
    assert "version  1 after 1 s, 91.0 %" in loud


def test_run_begins_with_a_given_model(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    import numpy as np
    from safetensors.numpy import load, save_file

    run_answers(fake, place)
    save_file({"w": np.ones(3, np.float32)}, place / "m.safetensors", {"made": "elsewhere"})

    fake.answers["PUT /blobs/*"] = {"bytes": 1}
    assert shoal("run", "job.toml", "--model", "m.safetensors", env=at(fake)).exit_code == 0
    sent, made = fake.asked[:2]
    digest = sent.path.rpartition("/")[2]
    assert (sent.method, load(sent.body)["w"].tolist()) == ("PUT", [1, 1, 1])
    assert made.json()["start_model"] == digest


def test_a_wrong_job_file_never_reaches_the_coordinator(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    (place / "job.toml").write_text(JOB + "ruonds = 3\n")
    result = shoal("run", "job.toml", env=at(fake))
    assert (result.exit_code, fake.asked) == (2, [])
    assert "job.toml" in result.stderr
    assert "did you mean 'rounds'?" in result.stderr


# Export
@pytest.mark.parametrize("version", ["2", "last", "best"])
def test_export_writes_the_model(shoal: Shoal, fake: FakeCoordinator, place: Path, version: str) -> None:
    export_answers(fake, place)
    result = shoal("export", "digits", "--version", version, env=at(fake))
    assert result.exit_code == 0, result.output
    assert (place / "digits-2.safetensors").read_bytes() == MODEL
    assert "digits-2.safetensors: version 2, 7 kB, sha256 " in result.stdout


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({"GET /jobs/digits/models/2": raw(MODEL[:-1], {"ETag": '"sha256:' + "0" * 64 + '"'})}, 1, "damaged"),
        ({"GET /jobs/digits": a_job(model=None)}, 1, "no model yet"),
        ({"GET /jobs/digits/models/2": Problem(410, "model.gone", "no longer kept")}, 1, "no longer kept"),
    ],
)
def test_export_leaves_nothing_behind_when_it_fails(
    shoal: Shoal, fake: FakeCoordinator, place: Path, changes: dict[str, object], code: int, says: str
) -> None:
    export_answers(fake, place)
    fake.answers |= changes  # type: ignore[arg-type]
    result = shoal("export", "digits", "-o", "m.safetensors", env=at(fake))
    assert result.exit_code == code
    assert says in result.stderr
    assert list(place.glob("*")) == []
    assert list(place.glob(".*")) == []


def test_export_of_the_best_needs_an_accuracy(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    export_answers(fake, place)
    fake.answers["GET /jobs/digits"] = a_job(best=None)
    result = shoal("export", "digits", "--version", "best", env=at(fake))
    assert (result.exit_code, "--version last" in result.stderr) == (1, True)
    assert shoal("export", "digits", "--version", "newest", env=at(fake)).exit_code == 2


def test_export_overwrites_only_when_told(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    export_answers(fake, place)
    (place / "digits-2.safetensors").write_bytes(b"mine")
    (place / "m.csv").write_bytes(b"mine")
    for arguments in ([], ["--metrics", "m.csv"]):
        result = shoal("export", "digits", *arguments, env=at(fake))
        assert (result.exit_code, "--force" in result.stderr) == (2, True)
    assert (place / "digits-2.safetensors").read_bytes() == b"mine"
    assert shoal("export", "digits", "--force", env=at(fake)).exit_code == 0
    assert (place / "digits-2.safetensors").read_bytes() == MODEL


def test_metrics_as_lines_or_as_a_table(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    export_answers(fake, place)
    for name in ("m.jsonl", "m.csv"):
        assert shoal("export", "digits", "--metrics", name, env=at(fake)).exit_code == 0
    lines = [json.loads(line) for line in (place / "m.jsonl").read_text().splitlines()]
    assert [line["number"] for line in lines] == [0, 1, 2]
    head, first, second, third = (place / "m.csv").read_text().splitlines()
    assert head.startswith("number,digest,bytes,why,")
    assert head.endswith(",eval/accuracy")
    assert (first[-1], second.rpartition(",")[2], third.rpartition(",")[2]) == (",", "0.91", "0.92")
    assert not list(place.glob("*.safetensors"))
    both = shoal("export", "digits", "--metrics", "n.csv", "-o", "n.safetensors", "--json", env=at(fake))
    assert envelope(both)["data"].keys() == {"metrics", "model"}


@pytest.mark.parametrize("name", ["m.txt", "m"])
def test_metrics_in_an_unknown_form_are_refused(shoal: Shoal, fake: FakeCoordinator, name: str) -> None:
    result = shoal("export", "digits", "--metrics", name, env=at(fake))
    assert (result.exit_code, fake.asked) == (2, [])


def test_a_folder_that_is_not_there(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    export_answers(fake, place)
    for arguments in (["-o", "no/m.safetensors"], ["--metrics", "no/m.csv"]):
        result = shoal("export", "digits", *arguments, env=at(fake))
        assert result.exit_code == 1
        assert "No such file" in result.stderr


def test_nodes_of_a_job_are_shown_whole() -> None:
    from shoal.cli.commands.jobs import node_table

    assert node_table([a_node(seconds=None, weight=None)]).row_count == 1


HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m[bold red]x[/] [link=http://evil]y[/link]"


@pytest.mark.parametrize("command", ["nodes list", "jobs list", "jobs show digits"])
def test_nothing_that_a_node_says_commands_the_terminal(
    shoal: Shoal, fake: FakeCoordinator, place: Path, command: str
) -> None:
    """Texts of nodes and job files reach an operator's terminal as text."""
    node_answers(fake, place)
    fake.answers["GET /nodes"]["nodes"][0]["info"] = {"device": HOSTILE, "platform": HOSTILE}  # type: ignore[index, call-overload]
    nodes = fake.answers["GET /nodes"]
    job_answers(fake, place)
    fake.answers["GET /nodes"] = nodes
    fake.answers["GET /jobs/digits"] = a_job(title=HOSTILE, state_why=HOSTILE)
    fake.answers["GET /jobs/digits/events"] = {"events": [a_job_event(1, text=HOSTILE)]}
    result = shoal(*command.split(), env=at(fake) | {"FORCE_COLOR": "1", "COLUMNS": "300"})
    assert result.exit_code == 0, result.output
    assert "\x1b]" not in result.output
    assert "\x1b[2J" not in result.output
    assert "\x9b" not in result.output
    if command != "jobs list":
        assert "[bold red]x" in result.output
    assert "\x9b" not in shoal(*command.split(), "--json", env=at(fake)).output


def test_errors_of_a_server_are_text_too(shoal: Shoal, fake: FakeCoordinator) -> None:
    fake.answers["GET /jobs"] = Problem(409, "x", HOSTILE, HOSTILE)
    result = shoal("jobs", "list", env=at(fake))
    assert result.exit_code == 1
    assert "\x1b" not in result.output
    assert "[link=http://evil]y[/link]" in result.stderr
