"""Identifies a client for a NATS server by its ServiceAccount's token, or says why it is refused. Pure.

A server asks on `$SYS.REQ.USER.AUTH` about each client that no user of its configuration matches. The answer names a
user token with the permissions of a node's agent (`permissions.agent_of`), of a program of others that receives a
namespace's events (`tenant_of`), or of one that reads all events (`tool_of`).
https://docs.nats.io/running-a-nats-service/configuration/securing_nats/auth_callout
"""

from __future__ import annotations

import zlib

import msgspec

from services.operator.config import Config
from services.operator.tokens import AccountKey, claims_of
from shared.contracts import permissions
from shared.model.kube_object import KubeObject

NODE_NAME = "authentication.kubernetes.io/node-name"
"""In a reviewed token's extra: the node of the pod that it was made for. Since Kubernetes 1.32."""
_SERVICE_ACCOUNT = "system:serviceaccount:"
ACCOUNT = "$G"
"""Where the servers' configuration has Kerf's users."""


class Unreadable(ValueError):
    """What came is no question of a NATS server."""


class _ServerId(msgspec.Struct, frozen=True):
    id: str = ""


class _ClientInfo(msgspec.Struct, frozen=True):
    host: str = ""


class _ConnectOptions(msgspec.Struct, frozen=True):
    auth_token: str = ""
    user: str = ""


class _Request(msgspec.Struct, frozen=True):
    user_nkey: str
    server_id: _ServerId = _ServerId()
    client_info: _ClientInfo = _ClientInfo()
    connect_opts: _ConnectOptions = _ConnectOptions()


class _Claims(msgspec.Struct, frozen=True):
    nats: _Request


class Question(msgspec.Struct, frozen=True, kw_only=True):
    user_key: str
    server: str
    token: str
    user: str
    """What the client called itself, if it did."""
    address: str


class ReviewedUser(KubeObject, frozen=True):
    username: str = ""
    extra: dict[str, tuple[str, ...]] = {}


class Review(KubeObject, frozen=True):
    """The status of a TokenReview."""

    authenticated: bool = False
    user: ReviewedUser = ReviewedUser()
    audiences: tuple[str, ...] = ()
    error: str = ""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The NATS user that the client gets, or why it is refused."""

    user: permissions.User | None = None
    refusal: str = ""


def read(payload: bytes) -> Question:
    """Raises Unreadable."""
    try:
        asked = msgspec.json.decode(claims_of(payload.decode()), type=_Claims).nats
    except ValueError as error:
        raise Unreadable(f"no question of a NATS server: {error}") from error
    return Question(
        user_key=asked.user_nkey,
        server=asked.server_id.id,
        token=asked.connect_opts.auth_token,
        user=asked.connect_opts.user,
        address=asked.client_info.host,
    )


def judge(review: Review, config: Config) -> Verdict:
    """What the API server says of a token."""
    if not review.authenticated:
        return Verdict(refusal=f"the API server does not accept the token: {review.error or 'no reason given'}")
    if config.agent_audience not in review.audiences:
        return Verdict(refusal=f"the token is not for audience {config.agent_audience}")
    namespace, _, name = review.user.username.removeprefix(_SERVICE_ACCOUNT).partition(":")
    if not review.user.username.startswith(_SERVICE_ACCOUNT) or not name:
        return Verdict(refusal=f"the token is {review.user.username}'s, which is no ServiceAccount")
    if (namespace, name) == (config.namespace, config.agent_account):
        return _agent(review)
    if f"{namespace}/{name}" in config.listening_accounts:
        return Verdict(user=permissions.tool_of(namespace, name))
    if namespace in config.listening_namespaces:
        return Verdict(user=permissions.tenant_of(namespace))
    return Verdict(
        refusal=f"the token is that of ServiceAccount {namespace}/{name}, which may not listen: add its namespace to "
        "the operator's listening_namespaces, or itself to its listening_accounts"
    )


def _agent(review: Review) -> Verdict:
    nodes = review.user.extra.get(NODE_NAME, ())
    if len(nodes) != 1 or not nodes[0]:
        return Verdict(
            refusal="the token names no node: it is not bound to a pod, or Kubernetes is older than 1.32; use the "
            "shared user node_agent there"
        )
    return Verdict(user=permissions.agent_of(nodes[0]))


def _spread(name: str) -> float:
    """0.75 to 1, by the name. Sessions that began together, as after a server's restart, do not end together."""
    return 1 - zlib.crc32(name.encode()) / 2**34


def answer(question: Question, verdict: Verdict, key: AccountKey, now_s: float, session_s: float) -> bytes:
    """What to send to the server."""
    now = int(now_s)
    decided: dict[str, object] = {"type": "authorization_response", "version": 2}
    if verdict.user is not None:
        limits = {"subs": -1, "data": -1, "payload": -1}
        decided["jwt"] = key.sign(
            {
                "iat": now,
                "exp": now + max(1, int(session_s * _spread(verdict.user.name))),
                "sub": question.user_key,
                "aud": ACCOUNT,
                "name": verdict.user.name,
                "nats": {"type": "user", "version": 2, **limits, **permissions.granted(verdict.user)},
            }
        )
    else:
        decided["error"] = verdict.refusal
    return key.sign({"iat": now, "sub": question.user_key, "aud": question.server, "nats": decided}).encode()
