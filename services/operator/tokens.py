"""NATS' tokens: an account's key pair, and the JWTs that it signs. Pure.

A token is a JWT whose algorithm is `ed25519-nkey` (github.com/nats-io/jwt).
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import msgspec
import nkeys


def new_seed(secret: bytes) -> str:
    """The seed of an account with this 32-byte secret."""
    return bytes(nkeys.encode_seed(secret, nkeys.PREFIX_BYTE_ACCOUNT)).decode()


class AccountKey:
    """An account's key pair, which signs tokens of its users."""

    def __init__(self, seed: str) -> None:
        """Raises ValueError for what is no account's seed."""
        try:
            self._pair = nkeys.from_seed(seed.encode())
            self.public = bytes(self._pair.public_key).decode()
        except (nkeys.NkeysError, ValueError, IndexError) as error:
            raise ValueError(f"the text is no seed of an nkey: {error or type(error).__name__}") from error
        if not self.public.startswith("A"):
            raise ValueError("the seed is not an account's")

    def sign(self, claims: dict[str, Any]) -> str:
        """A token of these claims, with issuer and id added."""
        claims = claims | {"iss": self.public, "jti": ""}
        claims["jti"] = base64.b32encode(hashlib.sha256(msgspec.json.encode(claims)).digest()).decode().rstrip("=")
        head = _base64(msgspec.json.encode({"typ": "JWT", "alg": "ed25519-nkey"}))
        signed = f"{head}.{_base64(msgspec.json.encode(claims))}"
        return f"{signed}.{_base64(bytes(self._pair.sign(signed.encode())))}"


def claims_of(token: str) -> bytes:
    """The claims of a token as JSON; its signature is not looked at. Raises ValueError."""
    parts = token.split(".")
    if len(parts) != 3:
        raise ValueError("no token: it must have three parts")
    return base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))


def _base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
