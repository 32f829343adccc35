"""Draw the folders of images in shapes/: crosses, discs and squares."""

from pathlib import Path

import numpy as np
from PIL import Image

rng = np.random.default_rng(0)
rows, columns = np.mgrid[:20, :20]
for name in ("cross", "disc", "square"):
    folder = Path(__file__).parent / "shapes" / name
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(40):
        (y, x), radius = rng.uniform(7, 13, 2), rng.uniform(4, 6)
        down, across = abs(rows - y), abs(columns - x)
        inside = {
            "cross": (np.minimum(down, across) < 1.5) & (np.maximum(down, across) < radius),
            "disc": np.hypot(down, across) < radius,
            "square": np.maximum(down, across) < radius * 0.85,
        }[name]
        colors = rng.integers(0, 90, 3), rng.integers(140, 256, 3)
        pixels = np.where(inside[:, :, None], colors[1], colors[0]) + rng.integers(-20, 20, (20, 20, 3))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{number:02}.png")
