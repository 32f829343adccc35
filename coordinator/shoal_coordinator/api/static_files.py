"""The dashboard's built files, in the smallest encoding that a browser accepts.

The build adds a `.br` and a `.gz` to each file that shrinks, so nothing is compressed during a request. Names under
`assets/` contain a hash of the contents, so browsers cache those files for ever.
"""

from __future__ import annotations

import mimetypes
import os
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import FileResponse, Response
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import Scope

from shoal_coordinator.http.compression import accepts

FORMS = (("br", ".br"), ("gzip", ".gz"))
"""Encodings and the ends of their files' names; the first that a browser takes is sent."""
YEAR = "public, max-age=31536000, immutable"
ASK_FIRST = "no-cache"
"""A browser keeps the file, and asks each time whether it still is the newest."""


def built_file(path: Path, request: Headers, keep: str) -> Response:
    """Answer with a built file, or with 304 where the browser has it. `keep`: the answer's `Cache-Control`."""
    headers = {"cache-control": keep, "vary": "Accept-Encoding"}
    media_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    sent = path
    for encoding, suffix in FORMS:
        form = path.with_name(path.name + suffix)
        if accepts(request, encoding) and form.is_file():
            sent, headers["content-encoding"] = form, encoding
            break
    answer = FileResponse(sent, headers=headers, media_type=media_type, stat_result=sent.stat())
    if answer.headers["etag"] in request.get("if-none-match", ""):
        return NotModifiedResponse(answer.headers)
    return answer


class StaticAssets(StaticFiles):
    """The files whose names contain a hash of their contents."""

    def file_response(
        self, full_path: str | os.PathLike[str], _stat: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        """Answer with the file in the form that the browser takes."""
        return built_file(Path(full_path), Headers(scope=scope), YEAR)
