"""`shoal restore`: what it looks at, what it takes, and what it tells the coordinator."""

from __future__ import annotations

import shutil
from pathlib import Path

from shoal.trust.keys import SigningKey
from tests.cli.command_cases import COMMANDS, MODEL
from tests.cli.conftest import Shoal, envelope
from tests.support.coordinator_views import a_job
from tests.support.fake_coordinator import FakeCoordinator, at


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


def test_a_key_that_is_not_here_is_asked_for(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    COMMANDS["restore"].prepare(fake, place)
    said = shoal("restore", "--from", "node", "--dry-run", env=at(fake))
    assert said.exit_code == 2
    assert "no key at shoal-data/coordinator.pem" in said.stderr
    assert "--key DATA/coordinator.pem" in said.stderr
