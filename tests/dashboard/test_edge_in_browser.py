"""The edge client for browsers, in a browser: it passes the conformance kit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page

import shoal
from shoal.conformance.cases import CASES
from shoal.conformance.kit import ConformanceKit
from tests.support.coordinator import OPERATOR, Inside, inside

JOIN = """async ([token, name]) => {
  const { EdgeClient, ConformanceLearner } = await import("/edge.js");
  const client = new EdgeClient("", new ConformanceLearner());
  await client.enrol(token, name);
  window.stops = [...(window.stops ?? []), new AbortController()];
  client.run(window.stops.at(-1).signal);
}"""
NODES = ("tablet", "laptop")


@pytest.fixture
def where(tmp_path: Path) -> Iterator[Inside]:
    with inside(tmp_path / "data") as running:
        yield running


def test_it_conforms(where: Inside, page: Page, errors: list[str]) -> None:
    page.goto(where.url + "/healthz")
    for name in NODES:
        page.evaluate(JOIN, [where.token(), name])
    with shoal.connect(where.url, OPERATOR) as client:
        kit = ConformanceKit(client, NODES, 30.0)
        found = {case.name: kit.run(case) for case in CASES}
        page.evaluate("() => window.stops.forEach((stop) => stop.abort())")
    assert {name: one.why for name, one in found.items() if one.verdict == "failed"} == {}
    refused = {name: one.why for name, one in found.items() if one.verdict == "refused"}
    assert refused == {
        "stages": "this client's model does not grow, and the job has stages",
        **{name: f"this client does not know the filter {name}" for name in ("half", "quantize", "top_k", "delta")},
    }
    assert errors == []
