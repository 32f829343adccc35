"""A node that the coordinator knows by its key alone asks for a credential.

    POST /api/v1/jobs/JOB/readmission?term=TERM      the `Shoal-*` headers of the node (`shoal.trust.envelope`)

The node has made the credential itself and says only its SHA-256. The answer is signed with the coordinator's key, so a
node tells its credential to nobody but the coordinator that has led it before. A request is for one term of it: an
answer without a name says which one that is.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from shoal import strict_json
from shoal.core.errors import InvalidPayload
from shoal.runtime.relay import Carried, Said, answered
from shoal.trust.envelope import Signer, sha256
from shoal.trust.keys import peer_id_of


@dataclass(frozen=True)
class Readmitted:
    """`name`: whose the credential is now; empty: nothing has happened, for the coordinator is of that `term`."""

    name: str
    term: int


def seal(signer: Signer, term: int, credential: str) -> Carried:
    """The request for that credential, to the coordinator of that term."""
    charter = signer.charter
    content = json.dumps({"secret_sha256": hashlib.sha256(credential.encode()).hexdigest()}).encode()
    path = f"/api/v1/jobs/{charter.job}/readmission"
    hub = peer_id_of(charter.coordinator_pub)
    return Carried(signer.request(hub, "POST", path, f"term={term}", sha256(content)), content)


def opened(carried: Carried, said: Said, signer: Signer) -> Readmitted:
    """The coordinator's answer. Raises as `relay.opened` does; `InvalidPayload` for what it cannot have said."""
    try:
        found = strict_json.loads(answered(carried, said, signer))
        return Readmitted(str(found["name"]), int(found["term"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidPayload(f"an answer that is none to a readmission: {str(error)[:100]}", code="head.json") from None
