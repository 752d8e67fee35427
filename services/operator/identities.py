"""Signs the certificate with which a node shows who it is to other nodes, for GPUs over the network. Pure.

The question comes by a subject that only this node's agent may use, and the servers know its agent by its token. So the
operator believes the subject.
"""

from __future__ import annotations

from services.operator import certificates as pki
from services.operator.config import Config
from services.operator.messages import Entropy
from services.operator.objects import AUTHORITY, NATS_USERS
from services.operator.observed import Observed
from services.operator.passwords import REMOTE_KEY
from shared.contracts import subjects
from shared.contracts.base import ContractError, decode
from shared.contracts.identity import IdentityAnswer, IdentityRequest
from shared.model import names


def answer(  # noqa: PLR0917 - all that it depends on
    subject: str, payload: bytes, seen: Observed, config: Config, now_s: float, entropy: Entropy
) -> IdentityAnswer:
    try:
        asked = decode(payload, IdentityRequest)
        if subject != subjects.identity(asked.node):
            raise ValueError(f"the subject is not that of node {asked.node}")
        own = seen.secret(AUTHORITY)
        signer = pki.authority(own.text("tls.crt"), own.text("tls.key"))
        grants_key = seen.secret(NATS_USERS).text(REMOTE_KEY)
        if signer is None or not grants_key:
            raise ValueError("the operator has not made its CA and its keys yet; ask again")
        certificate = pki.certify(
            signer, asked.public_key, names.certificate_name(asked.node), now_s, config.certificate_days, entropy
        )
    except (ContractError, ValueError) as error:
        return IdentityAnswer(error=str(error))
    return IdentityAnswer(
        certificate=certificate,
        authority=seen.bundle or signer.pem.certificate,
        grants_key=grants_key,
        valid_until_s=now_s + config.certificate_days * pki.DAY_S,
    )
