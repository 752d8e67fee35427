"""How an agent gets the certificate with which its node shows who it is to other nodes (strategy `remote`)."""

from __future__ import annotations

from shared.contracts.base import Message


class IdentityRequest(Message, frozen=True):
    """Sent to the operator, by a subject that only this node's agent may use."""

    node: str
    public_key: str
    """In PEM. The private key never leaves the node."""


class IdentityAnswer(Message, frozen=True):
    certificate: str = ""
    """In PEM. Its DNS name is `names.certificate_name(node)`."""
    authority: str = ""
    """The CAs that sign nodes' certificates now, in PEM."""
    grants_key: str = ""
    """The installation's key, from which the secrets of remote grants are derived."""
    valid_until_s: float = 0.0
    """When the certificate ends, in seconds since 1970."""
    error: str = ""
