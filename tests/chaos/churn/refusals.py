"""What makes the API server refuse what the watchers request, while it serves everybody else.

throttle: its own priority and fairness rejects their requests with 429 and a Retry-After, all but one at a time.
webhook: somebody's webhook for pods, with failurePolicy Fail, does not answer, so that each Binding, eviction and patch
ends with 500.
"""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from tests.chaos.churn.removals import WATCHER

Refusal = Literal["throttle", "webhook"]
RETRY_S = 0.2
"""Until a change is tried again that the API server has not taken, because it is down."""
_LEVEL = "churn-no-seats"
_NAMESPACE, _, _NAME = WATCHER.removeprefix("system:serviceaccount:").partition(":")
_LEVELS = "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations"

Request = Callable[[str, str, object], tuple[int, bytes]]
"""A blocking request by method, path and body, as `ControlPlane.request`: status and answer. Raises OSError
and HTTPException."""

LEVEL = {
    "metadata": {"name": _LEVEL},
    "spec": {
        "type": "Limited",
        "limited": {
            "nominalConcurrencyShares": 0,
            "borrowingLimitPercent": 0,
            "limitResponse": {"type": "Reject"},
        },
    },
}
"""A priority level without a seat of its own. The API server lets one request at a time pass all the same."""

_OBJECTS: Mapping[Refusal, tuple[str, dict[str, Any]]] = {
    "throttle": (
        "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas",
        {
            "metadata": {"name": "churn-throttle"},
            "spec": {
                "matchingPrecedence": 2,
                "priorityLevelConfiguration": {"name": _LEVEL},
                "rules": [
                    {
                        "subjects": [
                            {
                                "kind": "ServiceAccount",
                                "serviceAccount": {"namespace": _NAMESPACE, "name": _NAME},
                            }
                        ],
                        "resourceRules": [
                            {
                                "verbs": ["*"],
                                "apiGroups": ["*"],
                                "resources": ["*"],
                                "clusterScope": True,
                                "namespaces": ["*"],
                            }
                        ],
                    }
                ],
            },
        },
    ),
    "webhook": (
        "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
        {
            "metadata": {"name": "churn-webhook"},
            "webhooks": [
                {
                    "name": "pods.churn.example",
                    # Port 1 of the API server's own machine: refused immediately.
                    "clientConfig": {"url": "https://127.0.0.1:1/"},
                    "rules": [
                        {
                            "operations": ["*"],
                            "apiGroups": [""],
                            "apiVersions": ["*"],
                            "resources": ["pods", "pods/*"],
                        }
                    ],
                    "matchConditions": [
                        {"name": "of-the-watchers", "expression": f"request.userInfo.username == '{WATCHER}'"}
                    ],
                    "failurePolicy": "Fail",
                    "sideEffects": "None",
                    "timeoutSeconds": 1,
                    "admissionReviewVersions": ["v1"],
                }
            ],
        },
    ),
}
assert set(_OBJECTS) == set(get_args(Refusal))


class Refusals:
    """What of it is ordered, and the objects of the API server that do it."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._ordered: set[Refusal] = set()
        self._there: set[Refusal] = set()
        self._changed = asyncio.Event()

    @property
    def none(self) -> bool:
        """Nothing is refused, nor ordered to be."""
        return not self._ordered and not self._there

    async def prepare(self) -> None:
        await self._send("POST", _LEVELS, LEVEL, {201, 409})

    def begin(self, refusal: Refusal) -> None:
        self._ordered.add(refusal)
        self._changed.set()

    def end(self, refusal: Refusal) -> None:
        self._ordered.discard(refusal)
        self._changed.set()

    def end_all(self) -> None:
        self._ordered.clear()
        self._changed.set()

    async def keep(self) -> None:
        """For ever: carries out what is ordered, as soon as the API server answers. Raises AssertionError if it refuses
        that."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self.carry_out()
            except (OSError, http.client.HTTPException):
                await asyncio.sleep(RETRY_S)
                self._changed.set()

    async def carry_out(self) -> None:
        """Returns when everything is as ordered. Raises OSError and HTTPException while the API server is down."""
        while different := self._ordered ^ self._there:
            refusal = different.pop()
            path, body = _OBJECTS[refusal]
            if refusal in self._ordered:
                # It was created before by a request of which the answer was lost.
                await self._send("POST", path, body, {201, 409})
                self._there.add(refusal)
            else:
                await self._send("DELETE", f"{path}/{body['metadata']['name']}", None, {200, 404})
                self._there.discard(refusal)

    async def _send(self, method: str, path: str, body: object, expected: set[int]) -> None:
        """Raises OSError and HTTPException while the API server is down, starts, or has too much to do."""
        status, answer = await asyncio.to_thread(self._request, method, path, body)
        if status not in expected and (status >= 500 or status == 429):
            raise OSError(f"{status} {answer.decode()}")
        assert status in expected, f"{method} {path}: {status} {answer.decode()}"
