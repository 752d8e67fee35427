"""Kerf's own CA and the certificates that it signs. Pure: time and random bytes come from the caller.

A certificate is renewed when a third of its life is left, as cert-manager does: a month of 90 days, in which an
operator that is down, or a cluster that is switched off, is noticed and repaired before anything fails.

A CA is replaced with overlap. The new one is trusted at once, by everything that reads the bundle, and signs only when
`authority_overlap_s` has passed; the old one stays in the bundle until it expires.
"""

from __future__ import annotations

import datetime
import ipaddress
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from services.operator.messages import Entropy
from shared.model.timestamps import seconds_text

DAY_S = 86400.0
BACKDATED_S = 300.0
"""Certificates begin this long before they are made: clocks of nodes differ."""
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Of the group of P-256 (FIPS 186-5, SP 800-186)."""


class Pair(NamedTuple):
    """A certificate and its private key, in PEM."""

    certificate: str
    key: str


class Authority(NamedTuple):
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    pem: Pair


def read(pem: str) -> x509.Certificate | None:
    """The first certificate of a PEM text; None where there is none."""
    try:
        return x509.load_pem_x509_certificate(pem.encode())
    except ValueError:
        return None


def read_all(pem: str) -> tuple[x509.Certificate, ...]:
    """Every certificate of a PEM text; none where one of them cannot be read."""
    try:
        return tuple(x509.load_pem_x509_certificates(pem.encode())) if pem.strip() else ()
    except ValueError:
        return ()


def authority(certificate: str, key: str) -> Authority | None:
    """The CA of these PEM texts; None where they are no CA or do not belong together."""
    found, secret = read(certificate), _read_key(key)
    if found is None or secret is None or not _is_authority(found):
        return None
    if secret.public_key() != found.public_key():
        return None
    return Authority(found, secret, Pair(certificate, key))


def new_authority(now_s: float, days: float, entropy: Entropy) -> Authority:
    key = _new_key(entropy)
    # Two CAs in one bundle are told apart by name as well as by key.
    name = _name(f"Kerf CA {entropy(4).hex()}")
    made = (
        _begun(name, name, key.public_key(), now_s, days, entropy)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign_certificates=True), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = Pair(_pem(made), _key_pem(key))
    return Authority(made, key, pem)


def issue(
    signer: Authority, names: tuple[str, ...], now_s: float, days: float, entropy: Entropy, *, client: bool
) -> Pair:
    """A certificate for a server. `client`: one that is also a client (NATS servers are both to each other)."""
    key = _new_key(entropy)
    made = _leaf(signer, key.public_key(), _name(names[0]), names, now_s, days, entropy, client=client)
    return Pair(_pem(made), _key_pem(key))


def certify(  # noqa: PLR0917 - the fields of a certificate
    signer: Authority, public_key: str, name: str, now_s: float, days: float, entropy: Entropy
) -> str:
    """A certificate for another's key, with one server name. Raises ValueError if the key is none of those in use."""
    try:
        key = serialization.load_pem_public_key(public_key.encode())
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(f"the public key cannot be read: {error}") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ValueError("the public key is not of the curve P-256")
    return _pem(_leaf(signer, key, _name("kerf node"), (name,), now_s, days, entropy, client=True))


def not_after(certificate: x509.Certificate) -> float:
    return certificate.not_valid_after_utc.timestamp()


def not_before(certificate: x509.Certificate) -> float:
    return certificate.not_valid_before_utc.timestamp()


def due(certificate: x509.Certificate, now_s: float, renew_left: float) -> bool:
    """Whether `renew_left` of its life is left, or less."""
    end = not_after(certificate)
    return now_s >= end - renew_left * (end - not_before(certificate))


def late(certificate: x509.Certificate, now_s: float, most_s: float) -> bool:
    """Whether less than `most_s` is left of it, and less than a quarter of its life: the usual time to renew a
    certificate is when a third is left, which can be less than `most_s`."""
    end = not_after(certificate)
    return end - now_s < min(most_s, (end - not_before(certificate)) / 4)


def signed_by(certificate: x509.Certificate, by: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(by)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def made_at(certificate: x509.Certificate) -> float:
    return not_before(certificate) + BACKDATED_S


def pems(certificates: tuple[x509.Certificate, ...] | list[x509.Certificate]) -> str:
    return "".join(_pem(certificate) for certificate in certificates)


def still_valid(certificates: tuple[x509.Certificate, ...], now_s: float) -> tuple[x509.Certificate, ...]:
    """Those that are CAs and have not expired, each once."""
    found: dict[bytes, x509.Certificate] = {}
    for certificate in certificates:
        if _is_authority(certificate) and not_after(certificate) > now_s:
            found[certificate.fingerprint(hashes.SHA256())] = certificate
    return tuple(found.values())


def others(have: str, bundle: str, now_s: float) -> str:
    """The certificates of `have` that are not in `bundle` and are valid at `now_s` (0: none), in PEM."""
    ours = {certificate.fingerprint(hashes.SHA256()) for certificate in read_all(bundle)}
    return pems(
        [
            certificate
            for certificate in (read_all(have) if now_s else ())
            if not_after(certificate) > now_s and certificate.fingerprint(hashes.SHA256()) not in ours
        ]
    )


def why_issue(
    pair: Pair,
    names: tuple[str, ...],
    *,
    client: bool,
    signer: Authority,
    trusted: tuple[x509.Certificate, ...],
    now_s: float,
    renew_left: float,
    overlap_s: float,
) -> str:
    """Why a new certificate is needed, as the end of a sentence; empty where the present one is good. `client`: as
    `issue` has it."""
    present, key = read(pair.certificate), _read_key(pair.key)
    if present is None or key is None:
        return "it was missing or could not be read"
    if key.public_key() != present.public_key():
        return "its key did not belong to it"
    if _names_of(present) != set(names):
        return f"its server names were not {', '.join(names)}"
    if not client and _may_be_client(present):
        return "it was one for clients too"
    if due(present, now_s, renew_left):
        return f"it would have ended at {seconds_text(not_after(present))}"
    if signed_by(present, signer.certificate):
        return ""
    if not any(signed_by(present, other) for other in trusted):
        return "no CA that is trusted had signed it"
    if now_s >= made_at(signer.certificate) + overlap_s:
        return "a new CA signs"
    return ""


def _leaf(  # noqa: PLR0917 - the fields of a certificate
    signer: Authority,
    key: ec.EllipticCurvePublicKey,
    subject: x509.Name,
    names: tuple[str, ...],
    now_s: float,
    days: float,
    entropy: Entropy,
    *,
    client: bool,
) -> x509.Certificate:
    identifier = signer.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return (
        _begun(subject, signer.certificate.subject, key, now_s, days, entropy)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage(
                [ExtendedKeyUsageOID.SERVER_AUTH, *([ExtendedKeyUsageOID.CLIENT_AUTH] if client else [])]
            ),
            critical=False,
        )
        .add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(signer.key, hashes.SHA256())
    )


def _begun(  # noqa: PLR0917 - the fields of a certificate
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now_s: float,
    days: float,
    entropy: Entropy,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        # RFC 5280: positive, at most 20 bytes.
        .serial_number(int.from_bytes(entropy(16), "big") | 1 << 127)
        .not_valid_before(_when(now_s - BACKDATED_S))
        .not_valid_after(_when(now_s + days * DAY_S))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _new_key(entropy: Entropy) -> ec.EllipticCurvePrivateKey:
    """40 bytes for 32: the remainder is as good as uniform (FIPS 186-5, A.2.1)."""
    return ec.derive_private_key(int.from_bytes(entropy(40), "big") % (_ORDER - 1) + 1, ec.SECP256R1())


def _read_key(pem: str) -> ec.EllipticCurvePrivateKey | None:
    try:
        key = serialization.load_pem_private_key(pem.encode(), None)
    except (ValueError, TypeError):
        return None
    return key if isinstance(key, ec.EllipticCurvePrivateKey) else None


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _names_of(certificate: x509.Certificate) -> set[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return {str(name.value) for name in names}


def _may_be_client(certificate: x509.Certificate) -> bool:
    try:
        uses = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return True
    return ExtendedKeyUsageOID.CLIENT_AUTH in uses


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def _when(unix_s: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(int(unix_s), datetime.UTC)
