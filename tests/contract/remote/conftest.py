"""Fixtures of the tests of both ends of a remote GPU."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def servers_stay_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folders with the fake driver's world are for one user; tests/remote/test_server_user.py shows the other."""
    monkeypatch.setenv("KERF_REMOTE_UID", "0")
