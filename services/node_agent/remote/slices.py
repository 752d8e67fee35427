"""What both nodes of a remote GPU derive from its grant, without a word between them: its name and its secret. Pure."""

from __future__ import annotations

import hashlib
import hmac

NAME_DIGITS = 32


def slice_name(uid: str, grant_id: str, container: str) -> str:
    """How both nodes call the server of a container: hexadecimal, and different for each grant."""
    text = "\0".join((uid, grant_id, container))
    return hashlib.sha256(text.encode()).hexdigest()[:NAME_DIGITS]


def slice_secret(key: bytes, name: str) -> str:
    """What a client has to know, beside having the certificate of its node. `key` is the installation's, and only
    agents have it. Raises ValueError if it is too short to be one."""
    if len(key) < MIN_KEY_BYTES:
        raise ValueError(f"the key of remote GPUs has {len(key)} bytes; it needs {MIN_KEY_BYTES}")
    return hmac.new(key, name.encode(), hashlib.sha256).hexdigest()


MIN_KEY_BYTES = 32
