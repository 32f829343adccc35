"""Schemas of byte counts, of blobs, and of transfers between nodes and an object store."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

Direction = Literal["up", "down"]


class TrafficRow(BaseModel):
    """Bytes of one group in one direction."""

    version: int | None = None
    node: str | None = None
    kind: str | None = None
    direction: Direction
    requests: int
    head_bytes: int
    body_bytes: int
    bytes: int


class JobTraffic(BaseModel):
    """Bytes on the wire; up is from node to coordinator. Version -1: outside any round.

    `total` counts bytes between nodes once; the rows of kind "gossip" count them at both ends.
    """

    job: str
    rows: list[TrafficRow]
    total: dict[Direction, int]


class TrafficTotal(BaseModel):
    """Bytes of all jobs since a time."""

    since: str = Field(description="start of the first quarter of an hour that is counted")
    up_bytes: int
    down_bytes: int


class BlobView(BaseModel):
    """A stored blob."""

    digest: str
    bytes: int


class PresignRequest(BaseModel):
    """The size of an update to upload."""

    bytes: int = Field(ge=1, lt=2**63)


class PresignView(BaseModel):
    """A presigned request that downloads or uploads a blob. A URL that is a path is the coordinator's own."""

    method: str
    url: str
    headers: dict[str, str]
    version: int = Field(description="to be repeated in the transfer's record")


class TransferRequest(BaseModel):
    """The bytes that one transfer to or from the store moved. The operation is idempotent."""

    id: str = Field(pattern=r"^[0-9a-f]{16}$", description="identifies the transfer")
    digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    direction: Literal["up", "down"] = Field(description="down: a model was downloaded")
    version: int = Field(ge=-1, lt=2**63)
    requests: int = Field(ge=0, le=1000)
    up_head: int = Field(ge=0, lt=2**40)
    up_body: int = Field(ge=0, lt=2**40)
    down_head: int = Field(ge=0, lt=2**40)
    down_body: int = Field(ge=0, lt=2**40)
