"""Hides the passwords and tokens of URLs in any text: logs, errors, and what the CLI prints."""

from __future__ import annotations

import re

_WITH_PASSWORD = re.compile(r"([a-z][a-z0-9+.-]*://[^\s:/@,\"']*:)[^\s,\"']*@", re.IGNORECASE)
_TOKEN_ALONE = re.compile(r"([a-z][a-z0-9+.-]*://)[^\s:/@,\"']+@", re.IGNORECASE)
HIDDEN = "***"


def redact(text: str) -> str:
    """The text with `***` for each password in a URL, and for a token that stands where a user's name would."""
    if "://" not in text or "@" not in text:
        return text
    return _TOKEN_ALONE.sub(rf"\g<1>{HIDDEN}@", _WITH_PASSWORD.sub(rf"\g<1>{HIDDEN}@", text))


def user_of(url: str) -> str:
    """The name of the user in a URL that has a password too; empty where there is none."""
    authority = url.partition("://")[2].rpartition("@")[0]
    name, colon, _ = authority.partition(":")
    return name if colon else ""
