"""NATS' keys and tokens: an account's key pair, and JWTs that a NATS server believes. Pure.

An nkey is base32 of a prefix byte, the 32 bytes of an Ed25519 key and a CRC-16; a token is a JWT whose algorithm is
`ed25519-nkey`. https://docs.nats.io/running-a-nats-service/configuration/securing_nats/auth_intro/nkey_auth and
github.com/nats-io/nkeys, github.com/nats-io/jwt.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_ACCOUNT = 0 << 3
_SEED = 18 << 3


def new_seed(secret: bytes) -> str:
    """The seed of an account with this 32-byte secret."""
    return _encode(bytes([_SEED | _ACCOUNT >> 5, (_ACCOUNT & 31) << 3]) + secret)


class AccountKey:
    """An account's key pair, which signs tokens of its users."""

    def __init__(self, seed: str) -> None:
        """Raises ValueError for what is no account's seed."""
        self._key = Ed25519PrivateKey.from_private_bytes(_secret_of(seed))
        raw = self._key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        self.public = _encode(bytes([_ACCOUNT]) + raw)

    def sign(self, claims: dict[str, Any]) -> str:
        """A token of these claims, with issuer and id added."""
        claims = claims | {"iss": self.public, "jti": ""}
        claims["jti"] = base64.b32encode(hashlib.sha256(msgspec.json.encode(claims)).digest()).decode().rstrip("=")
        head = _base64(msgspec.json.encode({"typ": "JWT", "alg": "ed25519-nkey"}))
        signed = f"{head}.{_base64(msgspec.json.encode(claims))}"
        return f"{signed}.{_base64(self._key.sign(signed.encode()))}"


def claims_of(token: str) -> bytes:
    """The claims of a token as JSON; its signature is not looked at. Raises ValueError."""
    parts = token.split(".")
    if len(parts) != 3:
        raise ValueError("no token: it must have three parts")
    return base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))


def _secret_of(seed: str) -> bytes:
    try:
        raw = base64.b32decode(seed + "=" * (-len(seed) % 8))
    except ValueError as error:
        raise ValueError("the seed is not base32") from error
    if len(raw) != 36 or _crc16(raw[:-2]) != int.from_bytes(raw[-2:], "little") or raw[0] & 0xF8 != _SEED:
        raise ValueError("the text is no seed of an nkey")
    if (raw[0] & 7) << 5 | raw[1] >> 3 != _ACCOUNT:
        raise ValueError("the seed is not an account's")
    return raw[2:34]


def _encode(raw: bytes) -> str:
    return base64.b32encode(raw + _crc16(raw).to_bytes(2, "little")).decode().rstrip("=")


def _base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _crc16(data: bytes) -> int:
    """CRC-16/XMODEM."""
    crc = 0
    for byte in data:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1 ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xFFFF
    return crc
