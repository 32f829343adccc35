"""What `docker compose up` needs before anything starts: secrets that nobody has to think of, and a token for nodes.

    python3 first.py secrets FOLDER          the passwords, and the database's address; what is there stays
    python3 first.py token FOLDER URL        a token that lets a thousand nodes in, for a year, asked of a coordinator
    python3 first.py bucket FOLDER URL NAME  the bucket for models and updates, of a store that speaks S3

The folder is a volume that only these containers have. Each of them can read all that is in it, whoever it runs as.
"""

from __future__ import annotations

import json
import secrets
import sys
import time
import urllib.request
from pathlib import Path

YEAR_S = 365 * 86400
NODES_MAX = 1000
BLOBS_KEY_ID = "shoal"
RENEW_S = 30 * 86400
"""A token that is as near to its end as that is made anew."""


def make_secrets(folder: Path) -> None:
    """Write what is missing."""
    password = kept(folder / "postgres.password", secrets.token_urlsafe(24))
    kept(folder / "operator.token", f"sho_{secrets.token_urlsafe(32)}")
    kept(folder / "database.url", f"postgresql://shoal:{password}@postgres/shoal")
    secret = kept(folder / "blobs.secret", secrets.token_urlsafe(32))
    known = [{"accessKey": BLOBS_KEY_ID, "secretKey": secret}]
    may = {"name": BLOBS_KEY_ID, "credentials": known, "actions": ["Admin"]}
    kept(folder / "s3.json", json.dumps({"identities": [may]}))


def make_bucket(folder: Path, url: str, name: str) -> None:
    """Make a bucket, unless it is there, in a store that has been told the secret."""
    from botocore.config import Config
    from botocore.exceptions import ClientError
    from botocore.session import get_session

    secret = (folder / "blobs.secret").read_text().strip()
    client = get_session().create_client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=BLOBS_KEY_ID,
        aws_secret_access_key=secret,
        config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 10}),
    )
    try:
        client.create_bucket(Bucket=name)
    except ClientError as error:
        if not error.response["Error"]["Code"].startswith("BucketAlready"):
            raise


def make_token(folder: Path, url: str) -> None:
    """Ask for a token, unless there is one that holds for long enough."""
    path = folder / "node.token"
    if path.exists() and time.time() - path.stat().st_mtime < YEAR_S - RENEW_S:
        return
    operator = (folder / "operator.token").read_text().strip()
    asked = {"role": "node", "uses": NODES_MAX, "ttl_s": YEAR_S}
    headers = {"Authorization": f"Bearer {operator}", "Content-Type": "application/json"}
    request = urllib.request.Request(  # noqa: S310 - the scheme is the one of the compose file
        f"{url}/api/v1/tokens", json.dumps(asked).encode(), headers
    )
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        write(path, json.load(answer)["token"])


def kept(path: Path, made: str) -> str:
    """What stands in a file; if there is none, what was made now."""
    if not path.exists():
        write(path, made)
    return path.read_text().strip()


def write(path: Path, text: str) -> None:
    """A whole file, or none."""
    temporary = path.with_suffix(".new")
    temporary.write_text(f"{text}\n")
    temporary.chmod(0o444)
    temporary.replace(path)


def main(arguments: list[str]) -> int:
    """Run one of them."""
    match arguments:
        case ["secrets", folder]:
            make_secrets(Path(folder))
        case ["token", folder, url]:
            make_token(Path(folder), url)
        case ["bucket", folder, url, name]:
            make_bucket(Path(folder), url, name)
        case _:
            sys.stderr.write(__doc__ or "")
            return 64
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
