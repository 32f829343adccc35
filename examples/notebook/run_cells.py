"""Run the cells of a notebook without Jupyter: python run_cells.py NOTEBOOK."""

import asyncio
import json
import sys
from pathlib import Path


async def run(name: str, text: str) -> dict[str, object]:
    """Run the code cells of a notebook one after the other; return the names that they have made."""
    names: dict[str, object] = {"__name__": "__main__"}
    for number, cell in enumerate(json.loads(text)["cells"]):
        if cell["cell_type"] == "code":
            code = compile("".join(cell["source"]), f"{name}, cell {number}", "exec")
            exec(code, names)  # noqa: S102 - the cells of the notebook that was named
    return names


if __name__ == "__main__":
    path = Path(sys.argv[1])
    asyncio.run(run(path.name, path.read_text(encoding="utf-8")))
