"""With what a node shows who it is to others, and the key of the grants' secrets: from the operator, or from files.

The agent makes the key of its node, and it never leaves it. The operator signs the certificate: NATS' servers know each
agent by its token, so nobody gets the certificate of another node.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from services.node_agent.config import Config
from services.node_agent.remote.programs import Certificates
from services.node_agent.remote.slices import MIN_KEY_BYTES
from shared.bus.port import BusError
from shared.contracts import subjects
from shared.contracts.base import ContractError, decode, encode
from shared.contracts.identity import IdentityAnswer, IdentityRequest
from shared.formats import UNREADABLE
from shared.service import Context

CERTIFICATE, KEY, BOTH = "tls.crt", "tls.key", "tls.pem"
AUTHORITY, GRANTS, VALID = "ca.crt", "grants.key", "valid"
RENEW_S, SPREAD_S, RETRY_S = 6 * 3600.0, 3600.0, 60.0
"""How often an agent asks for a new certificate, which is valid for a day; by how much agents differ in that; and how
long it waits after a failure."""


class Valid(msgspec.Struct, frozen=True, kw_only=True):
    """Beside the files of the operator."""

    asked_s: float
    until_s: float


class Identity:
    def __init__(self, ctx: Context, config: Config) -> None:
        self._ctx, self._config = ctx, config
        self._given = bool(config.remote_files)
        self._spread_s = int.from_bytes(hashlib.sha256(config.node.encode()).digest()[:4], "big") / 2**32 * SPREAD_S
        self._failed: tuple[float, str] = (float("-inf"), "")
        """When the operator was asked in vain, and why in vain."""
        self._folder = Path(config.remote_files or Path(config.checkpoint_file).with_name("remote"))
        # The operator's certificate and its key are in one file, so that they are replaced together.
        certificate, key = (CERTIFICATE, KEY) if self._given else (BOTH, BOTH)
        self.certificates = Certificates(
            certificate=self._folder / certificate, key=self._folder / key, authority=self._folder / AUTHORITY
        )

    def grants_key(self) -> bytes:
        """Raises OSError."""
        return (self._folder / GRANTS).read_bytes().strip()

    async def obtain(self) -> str:
        """Gets what is missing or becomes old. Returns why this node cannot show who it is; "" if it can."""
        if not self._given:
            why = await self._renew_once() if self._is_due() else ""
            if why and (self._is_over() or self.certificates.missing()):
                return why
        if missing := self.certificates.missing():
            return missing
        try:
            key = self.grants_key()
        except OSError as error:
            return f"{self._folder / GRANTS}: {error.strerror}"
        return "" if len(key) >= MIN_KEY_BYTES else f"{self._folder / GRANTS} has less than {MIN_KEY_BYTES} bytes"

    def _valid(self) -> Valid:
        try:
            return msgspec.json.decode((self._folder / VALID).read_bytes(), type=Valid)
        except (OSError, *UNREADABLE):
            return Valid(asked_s=0.0, until_s=0.0)  # none was obtained, so one is asked for

    def _is_due(self) -> bool:
        return not 0 <= self._ctx.now() - self._valid().asked_s < RENEW_S + self._spread_s

    def _is_over(self) -> bool:
        return self._ctx.now() >= self._valid().until_s

    async def _renew_once(self) -> str:
        """As `_renew`; for a while after a failure it returns the same reason without asking again."""
        at, why = self._failed
        if not 0 <= self._ctx.now() - at < RETRY_S:
            why = await self._renew()
            self._failed = (self._ctx.now() if why else float("-inf"), why)
        return why

    async def _renew(self) -> str:
        """Asks the operator. Returns why there is no new certificate."""
        key = ec.generate_private_key(ec.SECP256R1())
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        asked = IdentityRequest(node=self._config.node, public_key=public.decode())
        try:
            reply = await self._ctx.bus.request(subjects.identity(self._config.node), encode(asked))
            told = decode(reply, IdentityAnswer)
        except (BusError, ContractError) as error:
            return f"the operator does not answer: {error}"
        if told.error:
            return f"the operator signs no certificate: {told.error}"
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name, data in (
                (AUTHORITY, told.authority.encode()),
                (GRANTS, told.grants_key.encode()),
                (BOTH, private + told.certificate.encode()),
                (VALID, msgspec.json.encode(Valid(asked_s=self._ctx.now(), until_s=told.valid_until_s))),
            ):
                self._write(self._folder / name, data)
        except OSError as error:
            return f"the certificate cannot be kept in {self._folder}: {error.strerror}"
        self._ctx.log.info("identity_obtained", valid_until_s=told.valid_until_s)
        return ""

    @staticmethod
    def _write(path: Path, data: bytes) -> None:
        beside = path.with_name(f"{path.name}.new")
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
        beside.replace(path)
