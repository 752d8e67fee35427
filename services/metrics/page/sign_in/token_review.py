"""Sign-in by a Kubernetes token. The API server names its user, and says whether that user may read the page.

Needs the ClusterRole system:auth-delegator (creates TokenReviews and SubjectAccessReviews) and nothing else. A token
alone is not enough, since every pod has one: its user must be allowed to `get` the URL path /kerf/live.
"""

from __future__ import annotations

from typing import Any

import msgspec

from services.metrics.page.sign_in import Caller, Denied, Reviewer
from shared.kube.transport import Transport, TransportError

PATH = "/kerf/live"
MAX_TOKEN_BYTES = 16_384
_REVIEWS = {
    "TokenReview": "/apis/authentication.k8s.io/v1/tokenreviews",
    "SubjectAccessReview": "/apis/authorization.k8s.io/v1/subjectaccessreviews",
}


class TokenReviewSignIn:
    asks_for_token = True

    def __init__(self, review: Reviewer) -> None:
        self._review = review

    async def by_request(self, caller: Caller) -> str:  # noqa: ARG002 - a request names nobody: its session does
        raise Denied("sign in with a Kubernetes token", 401)

    def check_form(self, token: str) -> None:
        """Raises Denied for what no API server would accept, such as nothing, or a text with spaces."""
        token = token.strip()
        if not token or len(token) > MAX_TOKEN_BYTES or not token.isascii() or any(c.isspace() for c in token):
            raise Denied("this is no token; get one by `kubectl create token SERVICEACCOUNT`", 401)

    async def by_token(self, token: str) -> str:
        self.check_form(token)
        said: Any = await self._send("TokenReview", {"token": token.strip()})
        if not said.get("authenticated"):
            raise Denied(f"the API server does not accept the token: {said.get('error') or 'not authenticated'}", 401)
        user: dict[str, Any] = said.get("user", {})
        name = str(user.get("username", ""))
        allowed: Any = await self._send(
            "SubjectAccessReview",
            {
                "user": name,
                "uid": user.get("uid", ""),
                "groups": user.get("groups", []),
                "extra": user.get("extra", {}),
                "nonResourceAttributes": {"path": PATH, "verb": "get"},
            },
        )
        if not allowed.get("allowed"):
            raise Denied(
                f"{name} may not read this page. Allow it: a ClusterRole with nonResourceURLs [{PATH}] and verbs "
                "[get], and a ClusterRoleBinding to the user or group"
            )
        return name

    async def _send(self, kind: str, spec: dict[str, object]) -> object:
        group = _REVIEWS[kind].removeprefix("/apis/").rpartition("/")[0]
        answer = await self._review(_REVIEWS[kind], {"apiVersion": group, "kind": kind, "spec": spec})
        return answer.get("status", {})


def reviewer(transport: Transport) -> Reviewer:
    """Asks the API server. Raises Denied with status 503 where it does not answer or refuses to say."""

    async def review(path: str, body: object) -> dict[str, object]:
        try:
            response = await transport.request("POST", path, msgspec.json.encode(body))
        except TransportError as error:
            raise Denied(f"the API server does not answer: {error}; try again", 503) from error
        if response.status not in (200, 201):
            raise Denied(
                f"the API server answers {response.status} to a review; the account of metrics needs the ClusterRole "
                "system:auth-delegator",
                503,
            )
        decoded: dict[str, object] = msgspec.json.decode(response.body)
        return decoded

    return review
