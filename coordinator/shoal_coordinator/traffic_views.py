"""The shapes of byte counts in the API."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

Direction = Literal["up", "down"]


class TrafficRow(BaseModel):
    """Bytes in one direction, of one group."""

    version: int | None = None
    node: str | None = None
    kind: str | None = None
    direction: Direction
    requests: int
    head_bytes: int
    body_bytes: int
    bytes: int


class Traffic(BaseModel):
    """Bytes that crossed the wire; up is from node to coordinator. Version -1: outside any round.

    `total` counts once what nodes have sent each other; the rows of the kind "gossip" have it at both ends.
    """

    job: str
    rows: list[TrafficRow]
    total: dict[Direction, int]


class TrafficSince(BaseModel):
    """Bytes of all jobs since a moment."""

    since: str = Field(description="where the quarter of an hour begins from which they are counted")
    up_bytes: int
    down_bytes: int
