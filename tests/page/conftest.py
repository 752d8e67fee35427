"""A browser for the tests of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser

from tests.support.browser import browser, chromium_or_skip


@pytest.fixture
async def chromium() -> AsyncIterator[Browser]:
    async with browser(chromium_or_skip()) as started:
        yield started


@pytest.fixture
def complaints() -> list[str]:
    """What the console of the pages complains about: each test ends with none."""
    return []
