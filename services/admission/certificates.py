"""The webhook's certificate, read again when its files change: a renewal needs no restart and drops no connection."""

from __future__ import annotations

import ssl
from datetime import datetime
from pathlib import Path

from cryptography import x509


class Certificates:
    """One SSLContext for the server's whole life; a new pair is loaded into it, and counts from the next handshake
    on."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Raises OSError, ssl.SSLError or ValueError where the first pair cannot be read: nothing could be served."""
        self._certificate, self._key = certificate, key
        self.context = _context(certificate, key)
        self.expires = _end(certificate)
        """When the certificate in use ends."""
        self._seen = self._stamp()

    def refresh(self) -> bool:
        """Reloads the pair if its files changed; returns whether they did.

        Raises OSError, ssl.SSLError or ValueError if the files are half written or do not belong together. The old pair
        stays in use, and the next call tries again.
        """
        now = self._stamp()
        if now == self._seen:
            return False
        _context(self._certificate, self._key)  # tried apart first: a half-loaded pair would break every handshake
        end = _end(self._certificate)
        self.context.load_cert_chain(self._certificate, self._key)
        self.expires = end
        self._seen = now
        return True

    def _stamp(self) -> tuple[tuple[int, int, int], ...]:
        return tuple((s.st_ino, s.st_mtime_ns, s.st_size) for s in (self._certificate.stat(), self._key.stat()))


def _context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    return context


def _end(certificate: Path) -> datetime:
    """Of the first certificate in a file that an SSLContext has loaded: the server's own."""
    return x509.load_pem_x509_certificates(certificate.read_bytes())[0].not_valid_after_utc
