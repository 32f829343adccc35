"""Print the API's OpenAPI document: `python -m shoal_coordinator.openapi > dashboard/openapi.json`.

The dashboard's types are generated from that file; a test fails when it is not what the code says.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from shoal_coordinator.app import create_app
from shoal_coordinator.ledger import Ledger
from shoal_coordinator.service import Coordinator
from shoal_coordinator.settings import Settings


def document() -> str:
    """The document as text, the same on every machine."""
    with tempfile.TemporaryDirectory() as folder:
        app = create_app(Coordinator(Settings(data=Path(folder)), Ledger(), "unused"))
        return json.dumps(app.openapi(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    sys.stdout.write(document())
