"""How users sign in to the live page: one way in a file each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import msgspec


class Denied(Exception):
    """The caller may not read the page; the text says why and what to do."""

    def __init__(self, text: str, status: int = 403) -> None:
        super().__init__(text)
        self.status = status


class Caller(msgspec.Struct, frozen=True):
    """What is known of a request before it is let in."""

    address: str
    """Of the peer of the connection."""
    headers: Mapping[str, str]


class SignIn(Protocol):
    """Lets a caller in, or raises Denied."""

    asks_for_token: bool
    """Whether the page shows a form for a token."""

    async def by_request(self, caller: Caller) -> str:
        """The name of the user whom the request itself identifies. Raises Denied, with status 401 where signing in
        would help."""

    def check_form(self, token: str) -> None:
        """Raises Denied where this cannot be a token. It asks the API server nothing."""

    async def by_token(self, token: str) -> str:
        """The name of the user that the token is of. Raises Denied."""


Reviewer = Callable[[str, object], Awaitable[dict[str, object]]]
"""POSTs an object to a path of the API server and returns the answer."""
