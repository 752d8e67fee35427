"""The error of a request that makes no sense."""

from __future__ import annotations


class RequestError(ValueError):
    """A contradictory or invalid request. `code` is stable for programs; the text tells a person what to write
    instead."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
