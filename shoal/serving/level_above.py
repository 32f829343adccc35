"""The level above, over HTTP."""

from __future__ import annotations

from shoal.core.errors import ShoalError, Unreachable
from shoal.core.exits.cascade_level import CascadeAnswer
from shoal.core.exits.packed_bits import PackedFeatures
from shoal.runtime.http.client import Link
from shoal.validation import strict_json
from shoal.wire.cascade_codec import encode_features, read_answer

ANSWER_BYTES_MAX = 256 * 1024


class LevelAbove:
    """A client of the server of the level above. `number`: that of the level; `timeout_s`: of an answer."""

    def __init__(self, url: str, token: str, number: int, timeout_s: float) -> None:
        self._link, self._number = Link(url, credential=token, read_s=timeout_s), number

    def answer(self, features: PackedFeatures, model: str) -> CascadeAnswer:
        """Return its answer to features that `model` (SHA-256) computed. Raises `ShoalError`."""
        content = encode_features(model, self._number, features)
        headers = {"Content-Type": "application/octet-stream"}
        try:
            with self._link.exchange("POST", "/features", headers=headers, content=content) as response:
                data = response.read(ANSWER_BYTES_MAX)
            return read_answer(strict_json.loads(data))
        except Unreachable as error:
            hint = error.hint if error.code != "network.unreachable" else "check --up, and that shoal serve runs there"
            raise Unreachable(error.message, code=error.code, hint=hint) from error
        except (ValueError, RecursionError):
            text = "the level above does not answer with JSON"
            raise ShoalError(text, code="protocol.foreign", hint="check --up") from None
