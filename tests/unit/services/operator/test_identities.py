"""Whose certificate the operator signs, for GPUs over the network."""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Callable

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from services.operator import certificates as pki
from services.operator import identities
from services.operator.objects import NATS_USERS, Secret
from services.operator.observed import Observed
from shared.contracts import subjects
from shared.contracts.base import encode
from shared.contracts.identity import IdentityAnswer, IdentityRequest

NOW_S = time.time()
CA = pki.new_authority(NOW_S, 365, os.urandom)


def secret(**data: str) -> Secret:
    return Secret(data={key.replace("__", "."): base64.b64encode(text.encode()).decode() for key, text in data.items()})


def seen(*, authority: bool = True) -> Observed:
    found = Observed()
    of_nodes = {"nodes_ca": CA.pem.certificate, "nodes_ca_key": CA.pem.key} if authority else {}
    found.secrets[NATS_USERS] = secret(remote_grants_key="k" * 49, **of_nodes)
    return found


def public(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> str:
    return (
        key.public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        .decode()
    )


KEY = ec.generate_private_key(ec.SECP256R1())
UNKNOWN_CURVE = """-----BEGIN PUBLIC KEY-----
MDIwEAYHKoZIzj0CAQYFK4EEAAYDHgAEcUdWIa69Jwb+P++PBA6sySNINf7w+/6a
ZVdKVg==
-----END PUBLIC KEY-----
"""
"""Of secp112r1, as openssl writes it."""


def ask(
    node: str = "gpu-1", *, subject: str = "", key: str = "", payload: bytes = b"", authority: bool = True
) -> IdentityAnswer:
    asked = payload or encode(IdentityRequest(node=node, public_key=key or public(KEY)))
    return identities.answer(
        subject or subjects.identity(node),
        asked,
        seen(authority=authority),
        NOW_S,
        os.urandom,
    )


def test_the_keys_are_made_once_and_the_ca_is_the_nodes_own() -> None:
    made = identities.missing(Secret(), NOW_S, os.urandom)
    assert set(made) == {"remote_grants_key", "nodes_ca", "nodes_ca_key"}
    assert identities.missing(secret(**made), NOW_S, os.urandom) == {}
    later = identities.missing(secret(**made), NOW_S + 3651 * pki.DAY_S, os.urandom)
    assert set(later) == {"nodes_ca", "nodes_ca_key"}


def test_a_node_gets_a_certificate_for_its_own_key_and_name() -> None:
    told = ask()
    certificate = x509.load_pem_x509_certificate(told.certificate.encode())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["gpu-1.nodes.kerf.dev"]
    assert certificate.public_key() == KEY.public_key()
    certificate.verify_directly_issued_by(CA.certificate)
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert (told.authority, told.grants_key, told.error) == (CA.pem.certificate, "k" * 49, "")
    assert told.valid_until_s == pytest.approx(pki.not_after(certificate), abs=1)


def test_a_long_name_of_a_node_gets_one_too() -> None:
    assert ask("n" * 60 + "." + "m" * 60).error == ""


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (lambda: ask("gpu-2", subject=subjects.identity("gpu-1")), "not that of node gpu-2"),
        (lambda: ask(payload=b"{"), "IdentityRequest"),
        (lambda: ask(key="nonsense"), "cannot be read"),
        (lambda: ask(key=public(rsa.generate_private_key(65537, 2048))), "not of the curve P-256"),
        (lambda: ask(key=public(ec.generate_private_key(ec.BrainpoolP256R1()))), "not of the curve P-256"),
        (lambda: ask(key=UNKNOWN_CURVE), "cannot be read"),
        (lambda: ask(authority=False), "ask again"),
    ],
    ids=["another-node", "malformed", "no-key", "rsa", "curve", "unknown-curve", "no-authority"],
)
def test_whoever_asks_wrongly_is_told_why(told: Callable[[], IdentityAnswer], why: str) -> None:
    answer = told()
    assert why in answer.error
    assert not answer.certificate
    assert not answer.grants_key
