"""Schemas of tokens and browser sessions."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

Role = Literal["node", "operator", "viewer"]
USES_MAX = 100_000
"""Nodes that one token may enrol, so that a fleet needs one token. A short lifetime and revocation limit the damage of
a lost token."""


class TokenRequest(BaseModel):
    """The properties of a new token."""

    role: Role = "node"
    name: str | None = Field(
        None, pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$", description="the only node that the token may enrol"
    )
    uses: int = Field(1, ge=1, le=USES_MAX, description="nodes that the token may enrol")
    ttl_s: float | None = Field(None, gt=0, le=365 * 86400)


class TokenView(BaseModel):
    """A new token."""

    token: str = Field(description="cannot be read again")
    id: str = Field(description="the first letters of the token, which identify it in lists", examples=["sht_7SpQetou"])
    expires_at: str | None
    loopback: bool = Field(description="true if the coordinator listens on loopback only")


class TokenInfo(BaseModel):
    """A token that has not expired."""

    id: str = Field(description="the first letters of the token", examples=["sht_7SpQetou"])
    role: Role
    name: str | None = Field(description="the only node that the token may enrol")
    created_at: str
    expires_at: str
    uses: int = Field(description="nodes that the token may enrol in all; 0: it enrols none")
    uses_left: int
    sessions: int = Field(description="browser sessions that were opened with the token")


class TokenList(BaseModel):
    """Tokens, newest first."""

    tokens: list[TokenInfo]


class SignInRequest(BaseModel):
    """A token to open a browser session with."""

    token: str


class SessionView(BaseModel):
    """The role of a browser session."""

    role: Literal["operator", "viewer"] | None
