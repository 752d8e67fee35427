"""Headless Chromium, driven by playwright. It is the machine's own: nothing is downloaded."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from typing import Any

import pytest
from playwright.async_api import Browser, Page, async_playwright

ARGUMENTS = (
    "--no-sandbox",  # root in a container has no user namespaces
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium_or_skip() -> str:
    """Its path. Without one it skips, or fails where REQUIRE_PAGE=1."""
    found = next((path for name in NAMES if (path := shutil.which(name))), "")
    if not found:
        if os.environ.get("REQUIRE_PAGE") == "1":
            raise RuntimeError("REQUIRE_PAGE is set and there is no chromium; install Debian's package chromium")
        pytest.skip("no chromium is installed: Debian's package chromium has it")
    return found


@contextlib.asynccontextmanager
async def browser(path: str) -> AsyncIterator[Browser]:
    """A browser with an empty profile."""
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        try:
            yield started
        finally:
            await started.close()


@contextlib.asynccontextmanager
async def opened(
    of: Browser, url: str, *, complaints: list[str], width: int = 1440, height: int = 900, theme: Any = "light"
) -> AsyncIterator[Page]:
    """A page in a context of its own. Errors of the console, and violations of the policy, go to `complaints`."""
    context = await of.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
    page = await context.new_page()
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    await page.goto(url)
    try:
        yield page
    finally:
        await context.close()
