"""The API server's side of a mutating webhook, for the simulated cluster: an AdmissionReview out, a patched pod
back."""

from __future__ import annotations

import base64
import binascii
import uuid
from typing import TYPE_CHECKING, Any

import msgspec

from services.simulator.patch import PatchError, json_patch

if TYPE_CHECKING:
    import aiohttp

Json = dict[str, Any]
TIMEOUT_S = 10.0
USER = "kerf-sim"


class NotAdmitted(ValueError):
    """The webhook refused the object, or did not answer (failurePolicy Fail); the text is what the user reads."""


def review(pod: Json, uid: str) -> Json:
    """admission.k8s.io/v1, for the creation of a pod."""
    meta = pod.get("metadata") or {}
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    resource = {"group": "", "version": "v1", "resource": "pods"}
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": uid,
            "kind": kind,
            "resource": resource,
            "requestKind": kind,
            "requestResource": resource,
            "name": meta.get("name", ""),
            "namespace": meta.get("namespace") or "default",
            "operation": "CREATE",
            "userInfo": {"username": USER, "groups": ["system:authenticated"]},
            "object": pod,
            "oldObject": None,
            "dryRun": False,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        },
    }


def decide(pod: Json, uid: str, answer: Any) -> tuple[Json, list[str]]:
    """The admitted pod and the warnings. Raises NotAdmitted."""
    response = answer.get("response") if isinstance(answer, dict) else None
    if not isinstance(response, dict) or response.get("uid") != uid:
        raise NotAdmitted("the admission webhook's answer is no AdmissionReview for this request")
    if not response.get("allowed"):
        raise NotAdmitted(str((response.get("status") or {}).get("message") or "denied without explanation"))
    warnings = [str(w) for w in response.get("warnings") or ()]
    if not response.get("patch"):
        return pod, warnings
    if response.get("patchType") != "JSONPatch":
        raise NotAdmitted(
            f"the admission webhook sent a patch of type {response.get('patchType')!r}; only JSONPatch exists"
        )
    try:
        patched = json_patch(pod, msgspec.json.decode(base64.b64decode(response["patch"], validate=True)))
    except (PatchError, msgspec.DecodeError, binascii.Error, ValueError) as error:
        raise NotAdmitted(f"the admission webhook's patch cannot be applied: {error}") from error
    return patched, warnings


class Webhook:
    """Asks the webhook at `url`, as the API server does with failurePolicy Fail. An empty URL admits everything."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session: aiohttp.ClientSession | None = None

    async def admit(self, pod: Json) -> tuple[Json, list[str]]:
        if not self._url:
            return pod, []
        import aiohttp  # noqa: PLC0415 - only a simulated cluster needs it

        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S))
        uid = str(uuid.uuid4())
        body, headers = msgspec.json.encode(review(pod, uid)), {"Content-Type": "application/json"}
        try:
            async with self._session.post(self._url, data=body, headers=headers) as response:
                payload = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise NotAdmitted(f"the admission webhook at {self._url} cannot be reached: {error!r}") from error
        try:
            answer = msgspec.json.decode(payload)
        except msgspec.DecodeError as error:
            raise NotAdmitted(f"the admission webhook answered HTTP {response.status} and no JSON: {error}") from error
        return decide(pod, uid, answer)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None
