"""Reviews of pods in foreign dialects, for the tables of their tests."""

from __future__ import annotations

import copy
from typing import Any

import msgspec

from services.admission.core import review
from services.admission.messages import Allowed, Policy, Refused, Request
from services.admission.patch import apply
from shared.model.objects import Pod
from shared.model.request import GpuAsk
from shared.model.request_reader import read_request
from tests.unit.services.admission.pods import container, limits_of, pod

Json = dict[str, Any]
ANY = Policy()


def reviewed(manifest: Json, policy: Policy = ANY) -> Json:
    """The pod as admission rewrites it; a second review changes nothing."""
    answer = review(Request(pod=copy.deepcopy(manifest)), policy)
    assert isinstance(answer, Allowed), answer
    final: Json = apply(manifest, list(answer.patches))
    again = review(Request(pod=copy.deepcopy(final)), policy)
    assert isinstance(again, Allowed), again
    assert again.patches == ()
    return final


def amounts(manifest: Json, policy: Policy = ANY, index: int = 0) -> Json:
    """Kerf's GPU resources of a container after the review, without the prefix and the slot."""
    limits = limits_of(reviewed(manifest, policy), index)
    return {k.removeprefix("kerf.dev/"): v for k, v in limits.items() if k not in ("kerf.dev/slot", "cpu")}


def notes(manifest: Json, policy: Policy = ANY) -> Json:
    """Kerf's annotations after the review, without the prefix."""
    annotations = reviewed(manifest, policy)["metadata"].get("annotations") or {}
    return {k.removeprefix("kerf.dev/"): v for k, v in annotations.items() if k.startswith("kerf.dev/")}


def ask(manifest: Json, policy: Policy = ANY) -> GpuAsk:
    """What placement reads of the rewritten pod's only GPU container."""

    request = read_request(msgspec.convert(reviewed(manifest, policy) | {"kind": "Pod"}, Pod))
    assert request is not None
    (only,) = request.asks.values()
    return only


def refused(manifest: Json, policy: Policy = ANY) -> Refused:
    answer = review(Request(pod=copy.deepcopy(manifest)), policy)
    assert isinstance(answer, Refused), answer
    return answer


def untouched(manifest: Json, policy: Policy = ANY) -> bool:
    answer = review(Request(pod=copy.deepcopy(manifest)), policy)
    return isinstance(answer, Allowed) and answer.patches == ()


def one(scheduler: str = "", annotations: Json | None = None, labels: Json | None = None, **limits: Any) -> Json:
    """A pod with one container that has these limits, by full names."""
    more = {"schedulerName": scheduler} if scheduler else {}
    return pod(container(**limits), annotations=annotations, labels=labels, **more)
