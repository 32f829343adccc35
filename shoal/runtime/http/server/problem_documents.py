"""Problem documents (RFC 9457): what went wrong (`detail`), its `code` for programs, and what to do (`hint`)."""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, Field
from starlette.responses import Response

MEDIA_TYPE = "application/problem+json"


class Problem(BaseModel):
    """The body of every answer of 400 and above."""

    type: str = Field("about:blank", examples=["about:blank"])
    title: str = Field(examples=["Unprocessable Content"])
    status: int = Field(examples=[422])
    detail: str = Field(examples=["fc1.weight[3] is not finite"])
    code: str = Field(examples=["payload.not-finite"])
    hint: str = Field("", examples=["the training diverged: lower the learning rate, or clip"])
    instance: str = Field("", examples=["/api/v1/jobs/digits/reports"])


def problem(
    status: int, detail: str, code: str, hint: str = "", instance: str = "", *, retry_after_s: float = 0
) -> Response:
    """Return a problem as a response."""
    title, headers = HTTPStatus(status).phrase, {}
    if retry_after_s:
        headers["retry-after"] = str(math.ceil(retry_after_s))
    if status == HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    body = Problem(title=title, status=status, detail=detail, code=code, hint=hint, instance=instance)
    return Response(body.model_dump_json(), status, headers, MEDIA_TYPE)


def closing_messages(answer: Response) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a response as two ASGI messages; the connection is closed after it."""
    headers = [*answer.raw_headers, (b"connection", b"close")]
    start = {"type": "http.response.start", "status": answer.status_code, "headers": headers}
    return start, {"type": "http.response.body", "body": answer.body}


def closing_bytes(answer: Response) -> bytes:
    """Return all the bytes of a response, for a connection on which no request can be read."""
    lines = [f"HTTP/1.1 {answer.status_code} {HTTPStatus(answer.status_code).phrase}".encode()]
    lines += [b": ".join(header) for header in (*answer.raw_headers, (b"connection", b"close"))]
    return b"\r\n".join([*lines, b"", bytes(answer.body)])
