"""Yesterday's database under today's code, and yesterday's client at today's coordinator.

`stored/0003.json` was written by the last commit whose tables were those of revision 0003: a job of four rounds and two
nodes, killed in its third, when one of two reports had been acknowledged. Its rows, by table, and its bodies' files.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import JSON, Boolean, Engine, MetaData, create_engine, text

from coordinator import access
from coordinator.database import migrate
from coordinator.tables import metadata
from shoal import wire
from shoal.core.message import Ack
from tests.coordinator.history import final, predicted
from tests.coordinator.node import History, Node
from tests.coordinator.postgres import Cluster
from tests.coordinator.server import Inside, inside, until
from tests.coordinator.stage import by_hand, set_up

STORED = json.loads((Path(__file__).parent / "stored" / "0003.json").read_text())
SIZE, ROUNDS = 10, 4


def value(column: Any, told: Any) -> Any:
    """A value as SQLite keeps it, for any dialect."""
    if told is not None and isinstance(column.type, JSON):
        return json.loads(told)
    return bool(told) if isinstance(column.type, Boolean) else told


def put_back(engine: Engine, folder: Path) -> None:
    """The stored database and its files, as they were."""
    migrate(engine, STORED["revision"])
    old = MetaData()
    old.reflect(engine)
    with engine.begin() as connection:
        for table in old.sorted_tables:
            rows = STORED["tables"].get(table.name, [])
            if rows:
                made = [{name: value(table.c[name], told) for name, told in row.items()} for row in rows]
                connection.execute(table.insert(), made)
            if rows and "id" in table.c and engine.dialect.name == "postgresql":
                last = max(row["id"] for row in rows)
                connection.execute(text(f"SELECT setval(pg_get_serial_sequence('{table.name}', 'id'), {last})"))
    for name, content in STORED["bodies"].items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(base64.b64decode(content))


class Known(Node):
    """A node that was enrolled in those days, and has its credential."""

    def enter(self) -> None:
        self.client.headers["Authorization"] = f"Bearer {STORED['credentials'][self.node]}"
        assert self.ask("POST", "/hello", json={}).status_code == 200


def go_on(running: Inside) -> History:
    """Let the two nodes see the job to its end."""
    history = History()
    nodes = [Known(lambda: running.url, name, "", {"main": SIZE}, history) for name in ("n0", "n1")]
    for node in nodes:
        node.start()
    for node in nodes:
        node.finish()
    return history


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_job_of_an_earlier_release_goes_on(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    folder, given = tmp_path / "data", {}
    folder.mkdir()
    url = f"sqlite:///{folder / 'shoal.db'}"
    if kind == "postgresql":
        cluster: Cluster = request.getfixturevalue("cluster")
        given = {"database_url": cluster.database()}
        url = given["database_url"].replace("postgresql:", "postgresql+psycopg:", 1)
    engine = create_engine(url)
    put_back(engine, folder)
    with inside(folder, **given) as running:
        history = go_on(running)
        assert final(running, "main") == predicted(SIZE, ROUNDS, ["n0", "n1"])
        before = {row["number"]: row["digest"] for row in STORED["tables"]["versions"]}
        rows = running.rows("SELECT number, digest, reports FROM versions ORDER BY number")
        assert {number: digest for number, digest, _ in rows if number in before} == before
        assert [number for number, _, _ in rows] == list(range(ROUNDS + 1))
        third = {entry[0] for entry in json.loads(rows[3][2])}
        assert third == {"n0", "n1"}, "what was acknowledged before the upgrade counts after it"
        assert [version for _, node, _, version, _ in history.acks if node == "n0"] == [3], "and was not asked again"
        until("the job to be over", lambda: running.job("main")["state"] == "done")
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
    engine.dispose()


@pytest.fixture
def tomorrow(monkeypatch: pytest.MonkeyPatch) -> tuple[int, ...]:
    """A release that speaks one protocol more."""
    spoken = (*wire.PROTOCOLS, wire.PROTOCOLS[-1] + 1)
    for module in (wire, access):
        monkeypatch.setattr(module, "PROTOCOLS", spoken)
    return spoken


def said(answer: Any) -> int:
    """The protocol in which a frame is written."""
    length = int.from_bytes(answer.content[:4], "big")
    return int(json.loads(answer.content[4 : 4 + length])["shoal"])


def test_a_client_of_the_protocol_before_is_answered_in_it(coordinator: Inside, tomorrow: tuple[int, ...]) -> None:
    before, newest = tomorrow[-2:]
    token = coordinator.token()
    wanted = {"token": token, "name": "old", "info": {}, "protocols": [before]}
    enrolled = coordinator.request("POST", "/api/v1/enrol", json=wanted, headers={"Idempotency-Key": "k" * 32})
    assert (enrolled.status_code, enrolled.json()["protocol"]) == (201, before)
    stage = set_up(coordinator)
    for protocol in (before, newest):
        node, order = stage.nodes[protocol - before], stage.orders[f"n{protocol - before}"]
        node.client.headers["Shoal-Protocol"] = str(protocol)
        assert node.ask("POST", "/hello", json={"protocols": [protocol]}).json()["protocol"] == protocol
        polled = node.ask("GET", "/work", params={"wait_s": 0})
        assert said(polled) == protocol
        head, payload = stage.frame(node=node.node, shoal=protocol)
        answer = node.once("POST", "/jobs/main/reports", content=head + payload)
        assert answer is not None
        assert said(answer) == protocol
        assert wire.decode(answer.content).message == Ack(order.id, True)
    stage.close()


def test_a_client_of_a_protocol_that_is_too_old_is_told_so(coordinator: Inside) -> None:
    node = by_hand(coordinator, "n0")
    node.client.headers["Shoal-Protocol"] = "0"
    assert node.ask("GET", "/work", params={"wait_s": 0}).status_code == 426
    node.client.close()
