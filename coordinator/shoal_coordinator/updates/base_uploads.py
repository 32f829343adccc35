"""Receiving base models: files of frozen tensors, which a job's nodes fetch once."""

from __future__ import annotations

from shoal.core.errors import InvalidPayload
from shoal.core.model.tree import Layout
from shoal.core.protocol.message import BlobRef
from shoal.runtime.blob_files import FileBlobs
from shoal.wire.payload import layouts_of
from shoal_coordinator.settings import Settings
from shoal_coordinator.updates.uploads import ExpectedLayout, Uploads


class BaseUploads(Uploads):
    """Receiver of base models, whose numbers may be any: they are not averaged."""

    def __init__(self, blobs: FileBlobs, settings: Settings) -> None:
        super().__init__(blobs, settings.model_copy(update={"body_bytes_max": settings.base_bytes_max}))

    def _examine(self, ref: BlobRef, expected: ExpectedLayout | None) -> float:
        """Check that a stored file has tensors alone: else no node's base model would have its digest."""
        model = layouts_of(self._blobs.get(ref)).get("model")
        if not isinstance(model, Layout) or model.base_model or model.statistics:
            text = "the file has more than the tensors of a base model"
            hint = "write it with shoal.model_file.save_base"
            raise InvalidPayload(text, code="payload.header", hint=hint)
        return 0.0
