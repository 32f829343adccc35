"""Tokens: made, listed, revoked."""

from __future__ import annotations

import time

from shoal.core.errors import Refused
from shoal_coordinator.api.authentication import Operator
from shoal_coordinator.api.dependencies import AppSettings, Db, Followers, KnownCredentials, OperatorToken
from shoal_coordinator.api.routers import api_router
from shoal_coordinator.http.problems import errors
from shoal_coordinator.nodes import credentials
from shoal_coordinator.schemas.tokens import TokenInfo, TokenList, TokenRequest, TokenView
from shoal_coordinator.schemas.values import iso
from shoal_coordinator.settings import LOOPBACK

router = api_router(prefix="/tokens", tags=["nodes"])


@router.post("", status_code=201, responses=errors(401, 403))
async def create_token(
    body: TokenRequest, _: Operator, database: Db, known: KnownCredentials, settings: AppSettings
) -> TokenView:
    """Create a token that enrols nodes, or one that people sign in with."""
    secret = credentials.new_secret("token" if body.role == "node" else body.role)
    ttl_s = body.ttl_s or (settings.token_ttl_s if body.role == "node" else 365 * 86400.0)
    expires_at = time.time() + ttl_s
    uses = body.uses if body.role == "node" else 0
    await database.write(lambda c: credentials.add_token(c, secret, body.role, body.name, uses, expires_at))
    if body.role != "node":
        known.add(credentials.hash_secret(secret), credentials.Principal(body.role, "", expires_at))
    here = settings.host in LOOPBACK
    return TokenView(token=secret, id=credentials.token_id(secret), expires_at=iso(expires_at), loopback=here)


@router.get("", responses=errors(401, 403))
async def list_tokens(_: Operator, database: Db) -> TokenList:
    """List tokens that have not expired, newest first."""
    async with database.reader.connect() as connection:
        found = await connection.run_sync(credentials.list_tokens)
    rows = [
        TokenInfo(
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
    return TokenList(tokens=rows)


@router.delete("/{token}", status_code=204, responses=errors(401, 403, 404, 409))
async def revoke_token(
    token: str, _: Operator, database: Db, known: KnownCredentials, followers: Followers, operator_token: OperatorToken
) -> None:
    """Revoke a token by its first letters, and end the sessions opened with it. Nodes that it enrolled stay."""
    if token == credentials.token_id(operator_token):
        raise Refused(
            "this is the operators' own token, which is a setting and no entry here",
            code="token.own",
            hint="put another in DATA/operator.token and start the coordinator again",
        )
    for secret_hash in await database.write(lambda c: credentials.revoke_token(c, token)):
        known.forget(secret_hash)
        await followers.call_all("POST", "/internal/evict", {"secret_sha256": secret_hash})
