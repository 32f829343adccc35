"""Print the API's OpenAPI document: `python -m shoal_coordinator.api.openapi > dashboard/openapi.json`.

The dashboard's types are generated from that file; a test fails when it is not what the code says.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from shoal_coordinator.api.app import create_app
from shoal_coordinator.composition.coordinator import Coordinator
from shoal_coordinator.settings import Settings
from shoal_coordinator.telemetry.traffic import TrafficCounter


def document() -> str:
    """Return the document as text, equal on all machines."""
    with tempfile.TemporaryDirectory() as folder:
        app = create_app(Coordinator(Settings(data=Path(folder)), TrafficCounter(), "unused"))
        return json.dumps(app.openapi(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    sys.stdout.write(document())
