"""Tokens: made, listed, revoked."""

from __future__ import annotations

import time

from fastapi import APIRouter

from shoal.core.errors import Refused
from shoal_coordinator import auth, token_views
from shoal_coordinator.access import Coord, Operator
from shoal_coordinator.problems import errors
from shoal_coordinator.settings import LOOPBACK
from shoal_coordinator.views import iso

router = APIRouter(prefix="/tokens", tags=["nodes"])


@router.post("", status_code=201, responses=errors(401, 403))
async def create_token(body: token_views.NewToken, _: Operator, coordinator: Coord) -> token_views.Token:
    """Make a token: one that enrols nodes, or one with which people sign in."""
    secret = auth.new_secret("token" if body.role == "node" else body.role)
    ttl_s = body.ttl_s or (coordinator.settings.token_ttl_s if body.role == "node" else 365 * 86400.0)
    expires_at = time.time() + ttl_s
    uses = body.uses if body.role == "node" else 0
    await coordinator.database.write(lambda c: auth.add_token(c, secret, body.role, body.name, uses, expires_at))
    if body.role != "node":
        coordinator.directory.admit(auth.hashed(secret), auth.Principal(body.role, "", expires_at))
    here = coordinator.settings.host in LOOPBACK
    return token_views.Token(token=secret, id=auth.token_id(secret), expires_at=iso(expires_at), loopback=here)


@router.get("", responses=errors(401, 403))
async def list_tokens(_: Operator, coordinator: Coord) -> token_views.Tokens:
    """List the tokens that have not expired, by their first letters, the newest first."""
    async with coordinator.database.reader.connect() as connection:
        found = await connection.run_sync(auth.list_tokens)
    rows = [
        token_views.TokenRow(
            id=row.id,
            role=row.role,
            name=row.name,
            created_at=iso(row.created_at),
            expires_at=iso(row.expires_at),
            uses=row.uses_max,
            uses_left=row.uses,
            sessions=sessions,
        )
        for row, sessions in found
    ]
    return token_views.Tokens(tokens=rows)


@router.delete("/{token}", status_code=204, responses=errors(401, 403, 404, 409))
async def revoke_token(token: str, _: Operator, coordinator: Coord) -> None:
    """Revoke a token by its first letters, and end the sessions opened with it. Nodes that it enrolled stay."""
    if token == auth.token_id(coordinator.operator_token):
        raise Refused(
            "this is the operators' own token, which is a setting and no entry here",
            code="token.own",
            hint="put another in DATA/operator.token and start the coordinator again",
        )
    for secret_hash in await coordinator.database.write(lambda c: auth.revoke_token(c, token)):
        coordinator.directory.forget(secret_hash)
        await coordinator.deputies.each("POST", "/inside/forget", {"secret_sha256": secret_hash})
