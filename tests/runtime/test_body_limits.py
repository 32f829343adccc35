"""The headers of a request decide whether its body is read."""

import pytest

from shoal.core.errors import Refused
from shoal.runtime.http.server.body_limits import check_body


def code(headers: dict[str, str], bytes_max: int = 100) -> str:
    """Return the code of the refusal of a request with these headers; empty if its body may be read."""
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    try:
        check_body({"headers": raw}, bytes_max, "send less")
    except Refused as refusal:
        return refusal.code
    return ""


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, ""),
        ({"content-length": "0"}, ""),
        ({"content-length": "100"}, ""),
        ({"content-length": "101"}, "body.too-large"),
        ({"content-length": "9" * 30}, "body.too-large"),
        ({"content-length": "-1"}, "body.too-large"),
        ({"content-length": "many"}, "body.length"),
        ({"transfer-encoding": "chunked"}, "body.length-required"),
        ({"content-encoding": "identity", "content-length": "5"}, ""),
        ({"content-encoding": "gzip", "content-length": "5"}, "body.encoding"),
    ],
)
def test_a_body_is_read_only_with_an_announced_length_within_the_limit(headers: dict[str, str], expected: str) -> None:
    assert code(headers) == expected
