"""What becomes of the CA and its certificates: when one is made, trusted, used and dropped. Pure.

Secret kerf-ca holds the CA that signs (`tls.crt`, `tls.key`), the next one while it is only trusted (`next.crt`,
`next.key`), and former ones until they expire (`previous.crt`).
"""

from __future__ import annotations

from typing import NamedTuple

from cryptography import x509

from services.operator import certificates as pki
from services.operator.config import Config
from services.operator.messages import Entropy
from services.operator.objects import ADMISSION_TLS, NATS_TLS, Secret


class Authorities(NamedTuple):
    signer: pki.Authority
    trusted: tuple[x509.Certificate, ...]
    changed: dict[str, str | None]
    """What to write into the Secret, None: to remove."""

    @property
    def bundle(self) -> str:
        return pki.pems(self.trusted)


def server_names(config: Config) -> dict[str, tuple[str, ...]]:
    """The server names of each certificate, by the name of its Secret."""
    space = config.namespace
    found: dict[str, tuple[str, ...]] = {
        ADMISSION_TLS: (f"kerf-admission.{space}.svc", f"kerf-admission.{space}", "kerf-admission")
    }
    if config.nats_url and config.nats_tls:
        hosts = ("kerf-nats", f"kerf-nats.{space}", f"kerf-nats.{space}.svc")
        found[NATS_TLS] = (*hosts, *(f"*.{host}" for host in hosts), "localhost", "127.0.0.1")
    return found


def authorities(have: Secret, bundle: str, config: Config, now_s: float, entropy: Entropy) -> Authorities:
    """The CA that signs, those to trust, and what to write. `bundle`: what clients trust now."""
    signer = pki.authority(have.text("tls.crt"), have.text("tls.key"))
    following = pki.authority(have.text("next.crt"), have.text("next.key"))
    former = pki.read_all(have.text("previous.crt"))
    changed: dict[str, str | None] = {}
    if signer is None or pki.not_after(signer.certificate) <= now_s:
        # What clients trust already stays trusted: certificates in use may be signed by it.
        former = (*former, *pki.read_all(have.text("tls.crt")), *pki.read_all(bundle))
        signer, following = following or pki.new_authority(now_s, config.authority_days, entropy), None
        changed = _signs(signer)
    elif following is None and pki.due(signer.certificate, now_s, config.renew_left):
        following = pki.new_authority(now_s, config.authority_days, entropy)
        changed = {"next.crt": following.pem.certificate, "next.key": following.pem.key}
    elif following is not None and now_s >= pki.made_at(following.certificate) + config.authority_overlap_s:
        former, signer, following = (*former, signer.certificate), following, None
        changed = _signs(signer)
    ahead = (signer.certificate, *([following.certificate] if following else []))
    kept = tuple(certificate for certificate in pki.still_valid(former, now_s) if certificate not in ahead)
    if have.text("previous.crt") != pki.pems(kept):
        changed["previous.crt"] = pki.pems(kept)
    return Authorities(signer, (*ahead, *kept), changed)


def leaf(  # noqa: PLR0917 - all that a certificate depends on
    have: Secret,
    names: tuple[str, ...],
    by: Authorities,
    config: Config,
    now_s: float,
    entropy: Entropy,
    *,
    client: bool,
) -> tuple[dict[str, str], str]:
    """What the Secret of a certificate should hold, and why the certificate is a new one (empty: it is not). `client`:
    as `certificates.issue` has it."""
    present = pki.Pair(have.text("tls.crt"), have.text("tls.key"))
    why = pki.why_issue(
        present,
        names,
        client=client,
        signer=by.signer,
        trusted=by.trusted,
        now_s=now_s,
        renew_left=config.renew_left,
        overlap_s=config.authority_overlap_s,
    )
    pair = pki.issue(by.signer, names, now_s, config.certificate_days, entropy, client=client) if why else present
    return {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": by.bundle}, why


def _signs(signer: pki.Authority) -> dict[str, str | None]:
    return {"tls.crt": signer.pem.certificate, "tls.key": signer.pem.key, "next.crt": None, "next.key": None}
