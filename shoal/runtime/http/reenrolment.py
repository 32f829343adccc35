"""Request of a credential by a node that the coordinator knows by its key only.

    POST /api/v1/jobs/JOB/re-enrol?term=TERM      the `Shoal-*` headers of the node (`shoal.trust.envelope`)

The node makes the credential and sends only its SHA-256. The coordinator signs the answer, so a node uses the
credential only with the coordinator that it knows. A request is for one term: an answer without a name has the present
term.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from shoal.core.errors import InvalidPayload
from shoal.runtime.http.relay import RelayedAnswer, RelayedRequest, answered, hub_request
from shoal.trust.envelope import Signer, sha256
from shoal.validation import strict_json


@dataclass(frozen=True)
class Reenrolled:
    """`name`: whose the credential is now; empty: nothing has happened, for the coordinator is of that `term`."""

    name: str
    term: int


def seal(signer: Signer, term: int, credential: str) -> RelayedRequest:
    """Return the signed request to accept a credential, for the coordinator of that term."""
    content = json.dumps({"secret_sha256": hashlib.sha256(credential.encode()).hexdigest()}).encode()
    return hub_request(signer, "POST", "re-enrol", f"term={term}", sha256(content), content)


def opened(carried: RelayedRequest, answer: RelayedAnswer, signer: Signer) -> Reenrolled:
    """Return the coordinator's answer. Raises as `relay.opened`, and `InvalidPayload` for a malformed one."""
    try:
        found = strict_json.loads(answered(carried, answer, signer))
        return Reenrolled(str(found["name"]), int(found["term"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidPayload(f"malformed re-enrolment answer: {str(error)[:100]}", code="head.json") from None
