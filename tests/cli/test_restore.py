"""`shoal restore`: what it looks at, what it takes, and what it tells the coordinator."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from shoal.core.model.tree import Tree
from shoal.model_file import save_model
from shoal.runtime.durable_files import digest_of
from shoal.trust.keys import SigningKey
from tests.cli.command_cases import COMMANDS, MODEL, lost_coordinator
from tests.cli.conftest import Shoal, envelope
from tests.support.coordinator_views import a_job
from tests.support.fake_coordinator import FakeCoordinator, at, raw


def test_a_coordinator_that_has_the_job_is_not_given_it_again(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    COMMANDS["restore"].prepare(fake, place)
    restore = ("restore", "--from", "node", "--key", "key.pem")
    said = shoal(*restore, "--dry-run", env=at(fake))
    assert (said.exit_code, fake.asked) == (0, []), "only a look"
    assert next(line for line in said.stdout.splitlines() if line.startswith("digits")).split()[:3] == [
        "digits",
        "3",
        "1",
    ]
    said = shoal(*restore, "--yes", env=at(fake))
    assert (said.exit_code, [one.method for one in fake.asked]) == (0, ["GET", "PUT", "POST"])
    told = fake.asked[-1].json()
    assert (told["restore"]["node"], told["restore"]["created_at"]) == ("a", "2026-01-02T03:04:05.000Z")
    assert fake.asked[1].body == MODEL
    assert "digits is restored from a, at version 3, term 1002" in said.stdout
    fake.answers["GET /jobs"] = {"jobs": [a_job()]}
    said = shoal(*restore, "--yes", env=at(fake))
    assert said.exit_code == 1
    assert "digits was not restored: the coordinator already has a job with this name" in said.stdout
    assert [one.method for one in fake.asked[3:]] == ["GET"]


def test_what_is_not_this_keys_is_refused_by_name(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    COMMANDS["restore"].prepare(fake, place)
    (place / "key.pem").write_bytes(SigningKey.make().pem())
    said = shoal("restore", "--from", "node", "--from", "nowhere", "--key", "key.pem", "--yes", env=at(fake))
    assert (said.exit_code, fake.asked) == (1, [])
    assert "restore.key" in said.stdout
    assert "restore.nothing" in said.stdout


def test_a_model_that_is_gone_is_not_made_up(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    COMMANDS["restore"].prepare(fake, place)
    shutil.rmtree(place / "node/jobs/digits/blobs")
    said = shoal("restore", "--from", "node", "--key", "key.pem", "--yes", "--json", env=at(fake))
    assert said.exit_code == 1
    assert envelope(said)["data"]["jobs"][0]["code"] == "restore.model"
    assert [one.method for one in fake.asked] == ["GET"]


@pytest.mark.parametrize("from_node", [True, False])
def test_a_base_model_is_taken_from_a_state_folder_or_named(
    shoal: Shoal, fake: FakeCoordinator, place: Path, from_node: bool
) -> None:
    file = save_model(Tree.of({"w": np.ones(3, np.float32)}), place / "base.safetensors")
    data = file.read_bytes()
    digest = digest_of([data])
    lost_coordinator(fake, place, base_model=digest)
    fake.answers |= {"HEAD /bases/*": raw(b"", {}, 404), "PUT /bases/*": {}}
    begun = {"restored_from": {"node": "a", "version": 3, "term": 1002}}
    restore = ("restore", "--from", "node", "--key", "key.pem", "--yes")
    fake.answers["POST /jobs"] = a_job(**begun, base_model={"digest": digest, "bytes": None, "nodes": 0})
    lacking = shoal(*restore, env=at(fake))
    assert f"base model {digest[:12]} is not at the coordinator" in lacking.stderr
    assert [one for one in fake.asked if "/bases/" in one.path] == []
    fake.answers["POST /jobs"] = a_job(**begun, base_model={"digest": digest, "bytes": len(data), "nodes": 0})
    if from_node:
        (place / "node/bases").mkdir()
        shutil.copy(file, place / "node/bases" / digest)
    found = shoal(*restore, *(() if from_node else ("--base", str(file))), env=at(fake))
    assert (found.exit_code, found.stderr.count("base model")) == (0, 0)
    (sent,) = [one for one in fake.asked if one.method == "PUT" and "/bases/" in one.path]
    assert (sent.path.rpartition("/")[2], sent.body) == (digest, data)


def test_a_key_that_is_not_here_is_asked_for(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    COMMANDS["restore"].prepare(fake, place)
    said = shoal("restore", "--from", "node", "--dry-run", env=at(fake))
    assert said.exit_code == 2
    assert "no key at shoal-data/coordinator.pem" in said.stderr
    assert "--key DATA/coordinator.pem" in said.stderr
