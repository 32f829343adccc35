"""The built files, as the coordinator sends them."""

from __future__ import annotations

import gzip

import pytest

import shoal_dashboard


def test_every_built_script_and_style_sheet_lies_there_compressed_too() -> None:
    built = shoal_dashboard.assets()
    if built is None:
        pytest.skip("the dashboard is not built: python dev.py dashboard")
    large = [file for file in built.rglob("*") if file.suffix in (".js", ".css") and file.stat().st_size >= 4096]
    assert large
    for file in large:
        assert gzip.decompress(file.with_name(f"{file.name}.gz").read_bytes()) == file.read_bytes()
        assert file.with_name(f"{file.name}.br").stat().st_size < file.stat().st_size / 2
