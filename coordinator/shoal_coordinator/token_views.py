"""What the API says of tokens."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

Role = Literal["node", "operator", "viewer"]
USES_MAX = 100_000
"""Nodes that one token may enrol: more than a coordinator is made for, so that a fleet needs one token. What bounds the
harm that a lost token does is its lifetime, and that it can be revoked."""


class NewToken(BaseModel):
    """The token that is wanted."""

    role: Role = "node"
    name: str | None = Field(
        None, pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$", description="the only node that it may enrol"
    )
    uses: int = Field(1, ge=1, le=USES_MAX, description="nodes that it may enrol")
    ttl_s: float | None = Field(None, gt=0, le=365 * 86400)


class Token(BaseModel):
    """A new token."""

    token: str = Field(description="shown this once")
    id: str = Field(description="its first letters: what it is called in lists", examples=["sht_7SpQetou"])
    expires_at: str | None
    loopback: bool = Field(description="whether the coordinator listens on its own machine alone")


class TokenRow(BaseModel):
    """A token that was made and has not expired."""

    id: str = Field(description="its first letters", examples=["sht_7SpQetou"])
    role: Role
    name: str | None = Field(description="the only node that it may enrol")
    created_at: str
    expires_at: str
    uses: int = Field(description="nodes that it may enrol in all; 0: it enrols none")
    uses_left: int
    sessions: int = Field(description="browsers that are signed in with it")


class Tokens(BaseModel):
    """Tokens, the newest first."""

    tokens: list[TokenRow]
