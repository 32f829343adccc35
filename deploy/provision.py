"""Make the secrets of docker-compose.yml: one folder per service, and each folder is a volume of its own.

    provision.py secrets                                     make passwords, the operators' token, the database's URL
    provision.py bucket http://s3:8333 NAME                  make the bucket for models and updates
    provision.py tokens http://coordinator:8080 NODE NODE    ask the coordinator for a token for each of these nodes

What exists is kept. Each user of the containers that mount a folder can read it; no other container can.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import urllib.request
from pathlib import Path

ROOT = Path(os.environ.get("SECRETS", "/secrets"))
TOKEN_S = 3600
"""Seconds for which a node may join. Nodes run their users' code, which reads the token; so it is good for one node."""
BLOBS_KEY_ID = "shoal"


def make_secrets() -> None:
    """Write the secrets that are missing."""
    password = kept("postgres/password", secrets.token_urlsafe(24))
    kept("coordinator/database.url", f"postgresql://shoal:{password}@postgres/shoal")
    kept("coordinator/operator.token", f"sho_{secrets.token_urlsafe(32)}")
    secret = kept("coordinator/blobs.secret", secrets.token_urlsafe(32))
    credentials = [{"accessKey": BLOBS_KEY_ID, "secretKey": secret}]
    identity = {"name": BLOBS_KEY_ID, "credentials": credentials, "actions": ["Admin"]}
    kept("s3/s3.json", json.dumps({"identities": [identity]}))


def make_bucket(url: str, name: str) -> None:
    """Make a bucket, unless it exists, in a store that knows the secret."""
    from botocore.config import Config
    from botocore.exceptions import ClientError
    from botocore.session import get_session

    client = get_session().create_client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=BLOBS_KEY_ID,
        aws_secret_access_key=(ROOT / "coordinator/blobs.secret").read_text().strip(),
        config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 10}),
    )
    try:
        client.create_bucket(Bucket=name)
    except ClientError as error:
        if not error.response["Error"]["Code"].startswith("BucketAlready"):
            raise


def make_token(url: str, node: str) -> None:
    """Ask for a token that lets this node join, and no other."""
    operator = (ROOT / "coordinator/operator.token").read_text().strip()
    body = {"role": "node", "name": node, "ttl_s": TOKEN_S}
    headers = {"Authorization": f"Bearer {operator}", "Content-Type": "application/json"}
    request = urllib.request.Request(  # noqa: S310 - the scheme is the one of the compose file
        f"{url}/api/v1/tokens", json.dumps(body).encode(), headers
    )
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        write(ROOT / node / "node.token", json.load(answer)["token"])


def kept(name: str, made: str) -> str:
    """Return what a file holds. If there is none, write `made` into it first."""
    path = ROOT / name
    if not path.exists():
        write(path, made)
    return path.read_text().strip()


def write(path: Path, text: str) -> None:
    """Write a file as a whole or not at all."""
    temporary = path.with_suffix(".new")
    temporary.write_text(f"{text}\n")
    temporary.chmod(0o444)
    temporary.replace(path)


def main(arguments: list[str]) -> int:
    """Run one of the commands."""
    match arguments:
        case ["secrets"]:
            make_secrets()
        case ["bucket", url, name]:
            make_bucket(url, name)
        case ["tokens", url, *nodes]:
            for node in nodes:
                make_token(url, node)
        case _:
            sys.stderr.write(__doc__ or "")
            return 64
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
