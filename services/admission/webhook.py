"""AdmissionReview (admission.k8s.io/v1) in and out, as bytes. Pure."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from services.admission.core import review
from services.admission.messages import Allowed, Policy, Refused, Request
from shared.formats import UNREADABLE

API_VERSION = "admission.k8s.io/v1"


class Malformed(ValueError):
    """The request is not an AdmissionReview of a pod; the text says what was missing."""


class _Kind(msgspec.Struct, frozen=True):
    kind: str = ""


class _User(msgspec.Struct, frozen=True):
    username: str = ""


class _Request(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    uid: str
    operation: str
    namespace: str = ""
    kind: _Kind = _Kind()
    sub_resource: str = ""
    user_info: _User = _User()
    object: dict[str, Any] | None = None
    old_object: dict[str, Any] | None = None


class _Review(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    api_version: str
    kind: str
    request: _Request


_DECODER = msgspec.json.Decoder(_Review)


class Asked(msgspec.Struct, frozen=True):
    """A review that can be answered."""

    uid: str
    """The review's."""
    request: Request


def read(body: bytes) -> Asked:
    """Raises Malformed where this is no v1 AdmissionReview of a pod that carries its object."""
    try:
        came = _DECODER.decode(body)
    except UNREADABLE as error:
        raise Malformed(f"this is no AdmissionReview: {error}") from None
    if came.kind != "AdmissionReview" or came.api_version != API_VERSION:
        raise Malformed(f"this is {came.kind} of {came.api_version}; send AdmissionReview of {API_VERSION}")
    asked = came.request
    if asked.kind.kind != "Pod":
        raise Malformed(f"this reviews a {asked.kind.kind or 'nameless kind'}; only pods are reviewed here")
    if asked.operation not in ("CREATE", "UPDATE") or asked.object is None:
        raise Malformed(
            f"operation {asked.operation} {'without' if asked.object is None else 'with'} an object; CREATE and "
            "UPDATE with one are reviewed here"
        )
    return Asked(
        asked.uid,
        Request(
            pod=asked.object,
            old=asked.old_object,
            namespace=asked.namespace or "default",
            operation=asked.operation,
            user=asked.user_info.username,
            subresource=asked.sub_resource,
        ),
    )


def answer(asked: Asked, policy: Policy, *, traceparent: str = "") -> tuple[Allowed | Refused, bytes]:
    """The decision, and the AdmissionReview that carries it. `traceparent` is written on GPU pods that carry none."""
    decided = review(msgspec.structs.replace(asked.request, traceparent=traceparent), policy)
    response: dict[str, Any] = {"uid": asked.uid, "allowed": isinstance(decided, Allowed)}
    if isinstance(decided, Refused):
        message = f"kerf: {decided.sentence} [{decided.code}]"
        response["status"] = {"code": 403, "reason": "Forbidden", "message": message}
        response["auditAnnotations"] = {"refused": decided.code}
    else:
        if decided.patches:
            response |= {
                "patchType": "JSONPatch",
                "patch": base64.b64encode(msgspec.json.encode(decided.patches)).decode(),
            }
        if decided.warnings:
            response["warnings"] = list(decided.warnings)
        if decided.dialect:
            response["auditAnnotations"] = {"dialect": decided.dialect}
    return decided, msgspec.json.encode({"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response})
