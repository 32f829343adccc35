"""Answers to any request of any caller match the OpenAPI document, and are never an internal error.

schemathesis makes the requests from that document: right, wrong and on the edge. Its draws follow from the test's name
alone, so that a failure is seen again by running the test again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.config import GenerationConfig, ProjectConfig, ProjectsConfig, SchemathesisConfig

from shoal.core.protocol.message import Message, Report, TaskFailed
from shoal.core.protocol.peer_message import RelayRequest
from shoal.wire import codec, peer_codec
from shoal.wire.peer_codec import MessageBatch
from shoal_coordinator.api.openapi import document
from shoal_coordinator.api.routes import nodes as routes_nodes
from shoal_coordinator.api.routes.blobs import SAFETENSORS
from shoal_coordinator.http.problems import MEDIA_TYPE
from tests.support.coordinator import OPERATOR, inside
from tests.support.scenario import Stage, set_up
from tests.wire.strategies import MESSAGES, body_of, slots

load_all_checks()
KEPT = CHECKS.get_by_names(
    [
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
        "unsupported_method",
        "allow_header_conformance",
    ]
)
EXAMPLES = 20
JOB = "main"
ROLES = ("nobody", "operator", "node")
"""Operators may do everything that viewers may; test_authorization.py tries the rest on each route."""

config = SchemathesisConfig(
    projects=ProjectsConfig(default=ProjectConfig(generation=GenerationConfig(deterministic=True)))
)
schema = schemathesis.openapi.from_dict(json.loads(document()), config=config)
bounded = schema.exclude(path="/api/v1/stream")  # it has no end; test_event_stream.py reads it


def _frame(message: Message, payload: bytes) -> bytes:
    return codec.encode(codec.Frame(JOB, message, payload))


FRAMES = st.builds(_frame, MESSAGES[Report] | MESSAGES[TaskFailed], st.just(b"") | st.builds(body_of, slots()))
schemathesis.openapi.media_type(codec.MEDIA_TYPE, FRAMES | st.binary())
BATCHES = st.builds(
    lambda said: peer_codec.encode(MessageBatch("main", (RelayRequest("n0", said),))),
    MESSAGES[Report] | MESSAGES[TaskFailed],
)
schemathesis.openapi.media_type(peer_codec.MEDIA_TYPE, BATCHES | st.binary())
schemathesis.openapi.media_type(SAFETENSORS, st.builds(body_of, slots()) | st.binary())


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A job with tasks and models, so that there is something to ask for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(routes_nodes, "WRONG_TOKEN_S", 0.0)
        with inside(tmp_path_factory.mktemp("fuzz") / "data", poll_s_max=0.01, lease_s=3600.0) as running:
            made = set_up(running, JOB)
            yield made
            made.close()


@pytest.fixture(scope="module")
def sessions(stage: Stage) -> Iterator[dict[str, requests.Session]]:
    """One connection for each role."""
    node = stage.nodes[0].client.headers["authorization"].removeprefix("Bearer ")
    made = {role: requests.Session() for role in ROLES}
    for role, secret in (("operator", OPERATOR), ("node", node)):
        made[role].headers["Authorization"] = f"Bearer {secret}"
    yield made
    for session in made.values():
        session.close()


# The coordinator's thread draws span identifiers from the same global generator while hypothesis draws a request.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")
@bounded.parametrize()
@pytest.mark.parametrize("role", ROLES)
@settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
def test_answers(case: schemathesis.Case, role: str, stage: Stage, sessions: dict[str, requests.Session]) -> None:
    model = stage.tasks["n0"].blob
    assert model is not None
    there = {"job": JOB} | ({} if case.method == "PUT" else {"digest": model.digest})  # a drawn name would name nothing
    case.path_parameters.update({name: value for name, value in there.items() if name in case.path_parameters})
    runs = case.query.get("run")
    if isinstance(runs, list) and all(len(str(name)) != 1 for name in runs):  # some stay drawn, and name nothing
        case.query["run"] = [JOB, JOB]
    answer = case.call(base_url=stage.running.url, session=sessions[role])
    case.validate_response(answer, checks=KEPT)
    if answer.status_code >= 400 and case.method != "HEAD":
        assert answer.headers["content-type"] == [MEDIA_TYPE]
        said = answer.json()
        assert said["status"] == answer.status_code
        assert said["detail"]
        assert said["hint"]
