"""The screens that pages are looked at on: each theme and each width with every change, all pairs of them at night."""

from __future__ import annotations

import pytest

from tests.support.sampling import nightly

SCREENS = [("light", 1280), ("dark", 390), ("dark", 1280), ("light", 390)]

each_screen = pytest.mark.parametrize(("scheme", "width"), nightly(SCREENS, but=SCREENS[:2]))
