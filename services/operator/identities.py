"""Signs the certificate with which a node shows who it is to other nodes, for GPUs over the network. Pure.

Their CA signs nothing else, and nothing else trusts it: a node's certificate is none of the NATS servers, which let in
whoever has one of theirs. It is valid for ten years, and is not replaced before it ends.

The question comes by a subject that only this node's agent may use, and the servers know its agent by its token. So the
operator believes the subject.
"""

from __future__ import annotations

from services.operator import certificates as pki
from services.operator.messages import Entropy
from services.operator.objects import NATS_USERS, Secret
from services.operator.observed import Observed
from shared.contracts import subjects
from shared.contracts.base import ContractError, decode
from shared.contracts.identity import IdentityAnswer, IdentityRequest
from shared.model import names

GRANTS_KEY, CA, CA_KEY = "remote_grants_key", "nodes_ca", "nodes_ca_key"
"""Keys of Secret kerf-nats. From the first the secrets of grants on GPUs of other nodes are derived."""
CA_DAYS = 3650.0
CERTIFICATE_DAYS = 1.0
"""Agents ask again in time. A node that was taken out of the cluster gets no other."""


def missing(have: Secret, now_s: float, entropy: Entropy) -> dict[str, str]:
    """What to add to Secret kerf-nats, by key."""
    made = {} if have.text(GRANTS_KEY) else {GRANTS_KEY: f"k{entropy(32).hex()}"}
    signer = pki.authority(have.text(CA), have.text(CA_KEY))
    if signer is None or pki.not_after(signer.certificate) <= now_s:
        pair = pki.new_authority(now_s, CA_DAYS, entropy).pem
        made |= {CA: pair.certificate, CA_KEY: pair.key}
    return made


def answer(subject: str, payload: bytes, seen: Observed, now_s: float, entropy: Entropy) -> IdentityAnswer:
    try:
        asked = decode(payload, IdentityRequest)
        if subject != subjects.identity(asked.node):
            raise ValueError(f"the subject is not that of node {asked.node}")
        own = seen.secret(NATS_USERS)
        signer = pki.authority(own.text(CA), own.text(CA_KEY))
        grants_key = own.text(GRANTS_KEY)
        if signer is None or not grants_key:
            raise ValueError("the operator has not made its CA and its keys yet; ask again")
        certificate = pki.certify(
            signer, asked.public_key, names.certificate_name(asked.node), now_s, CERTIFICATE_DAYS, entropy
        )
    except (ContractError, ValueError) as error:
        return IdentityAnswer(error=str(error))
    return IdentityAnswer(
        certificate=certificate,
        authority=signer.pem.certificate,
        grants_key=grants_key,
        valid_until_s=now_s + CERTIFICATE_DAYS * pki.DAY_S,
    )
