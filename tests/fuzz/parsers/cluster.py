"""What the API server shows: objects of users and of other systems, in lists and watches, and what is made of them."""

from __future__ import annotations

from typing import Any

import msgspec

from services.watcher.core import Core
from shared.book.book import Book
from shared.book.states import grant_of, pod_state
from shared.contracts.facts import Put
from shared.formats import UNREADABLE
from shared.kube.decoder import Decoder, Undecodable, WatchError
from shared.kube.outcomes import outcome_of
from shared.kube.resources import REFLECTED, Resource
from shared.kube.transport import Response
from shared.model import names
from shared.model.autoscale import AutoscaleError, read_autoscale
from shared.model.gang import read_gang
from shared.model.grant import decode_grant, encode_grant
from shared.model.life import disruption_note, read_life
from shared.model.objects import Pod
from shared.model.request import RequestError
from shared.model.request_reader import read_request
from shared.model.resize import ResizeError, read_resize, wanted_grant
from shared.model.suspension import decode_suspension, encode_suspension
from shared.turns.gpu_time import read_gpu_time
from tests.fuzz.parser import Parser, promise
from tests.fuzz.parsers.annotations import ANNOTATIONS, GRANT

_READERS: dict[str, Any] = {
    "request": read_request,
    "gang": read_gang,
    "life": read_life,
    "disruption": disruption_note,
    "resize": lambda pod: read_resize(pod.metadata.annotations.get(names.ANNOTATION_RESIZE, "memory=1Gi")),
    "autoscale": lambda pod: read_autoscale(
        pod.metadata.annotations.get(names.ANNOTATION_AUTOSCALE, "memory=1Gi..2Gi")
    ),
}


def parsers() -> tuple[Parser, ...]:
    pods = [pod_list(key, text) for key, text in ANNOTATIONS]
    texts = dict(ANNOTATIONS)
    made = [
        Parser(
            name="pod", form="json", examples=pods, read=_pod_as_all_services_read_it, errors=(Undecodable,), weight=6
        ),
        Parser(name="grant", form="text", examples=(GRANT,), read=_grant, errors=UNREADABLE, weight=2),
        Parser(name="grant-tree", form="json", examples=(msgspec.json.decode(GRANT),), read=_grant, errors=UNREADABLE),
        Parser(
            name="suspension",
            form="text",
            examples=(texts[names.ANNOTATION_SUSPENDED],),
            read=_suspension,
            errors=UNREADABLE,
        ),
        Parser(
            name="resize", form="text", examples=(texts[names.ANNOTATION_RESIZE],), read=_resize, errors=(ResizeError,)
        ),
        Parser(name="status", form="json", examples=(_STATUS,), read=_status),
    ]
    for resource in REFLECTED:
        decoder = Decoder(resource)
        item = _OBJECTS.get(resource.kind, _OBJECTS[""])
        made.append(
            Parser(
                name=f"watch-{_name_of(resource)}",
                form="json",
                examples=({"type": "ADDED", "object": item}, {"type": "ERROR", "object": _STATUS}),
                read=lambda data, decoder=decoder: _event(decoder, data),
                errors=(Undecodable,),
            )
        )
        made.append(
            Parser(
                name=f"list-{_name_of(resource)}",
                form="json",
                examples=({"metadata": {"resourceVersion": "7"}, "items": [item, item]},),
                read=lambda data, decoder=decoder: decoder.page(data),
                errors=(Undecodable,),
            )
        )
    return tuple(made)


def _name_of(resource: Resource) -> str:
    return f"{resource.plural}.{resource.group}".rstrip(".")


def _event(decoder: Decoder, data: bytes) -> object:
    try:
        return decoder.event(data)
    except WatchError as error:
        return error


def _pod_as_all_services_read_it(data: bytes) -> object:
    """The watcher's, placement's and the agents' readers. A pod that cannot be decoded is left out by name."""
    page = _POD.page(data)
    for one in page.objects:
        assert isinstance(one, Pod)
        _read_pod(one)
    return page


def _read_pod(one: Pod) -> None:
    for read in _READERS.values():
        try:
            read(one)
        except (RequestError, ResizeError, AutoscaleError) as error:
            promise(bool(str(error)), "a refusal without a sentence")
    pod_state(one)
    grant, problem = grant_of(one)
    promise(grant is None or not problem, "a grant that is both valid and not")
    read_gpu_time(one.metadata.annotations)
    Core("epoch").facts((Put(object=one),), 1.0)
    book = Book()
    book.apply(Put(object=one))


_POD = Decoder(next(resource for resource in REFLECTED if resource.kind == "Pod"))


def _grant(data: bytes) -> object:
    grant = decode_grant(data.decode())
    promise(decode_grant(encode_grant(grant)) == grant, "the grant is another one when it is read again")
    for container in grant.containers.values():
        for share in container.gpus:
            promise(min(share.memory_mib, share.compute_milli, share.memory_limit_mib) >= 0, "an amount is negative")
    return grant


def _suspension(data: bytes) -> object:
    suspension = decode_suspension(data.decode())
    promise(decode_suspension(encode_suspension(suspension)) == suspension, "the suspension is another one")
    return suspension


def _resize(data: bytes) -> object:
    before = decode_grant(GRANT)
    after = wanted_grant(before, data.decode())
    promise(after.grant_id == before.grant_id, "a resize has changed the grant's identity")
    return after


def _status(data: bytes) -> object:
    return outcome_of(Response(status=409, body=data))


def pod_list(key: str, text: str, *, node: str = "n") -> dict[str, Any]:
    resources = {"limits": {"kerf.dev/gpu-memory": "16Gi", "cpu": "500m"}, "requests": {"cpu": "500m"}}
    pod = {
        "metadata": {
            "name": "p",
            "namespace": "team",
            "uid": "u",
            "resourceVersion": "12",
            "creationTimestamp": "2026-11-21T00:00:00Z",
            "labels": {"app": "x", "kueue.x-k8s.io/pod-group-name": "g"},
            "annotations": {key: text, names.ANNOTATION_GANG: "g", names.ANNOTATION_GANG_SIZE: "4"}
            if "gang" in key
            else {key: text},
        },
        "spec": {
            "schedulerName": "kerf",
            "nodeName": node,
            "containers": [{"name": "main", "resources": resources, "ports": [{"hostPort": 80}]}],
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["3"]}]}]
                    }
                }
            },
            "tolerations": [{"key": "a", "operator": "Exists"}],
        },
        "status": {"phase": "Running", "startTime": "2026-11-21T00:00:00Z"},
    }
    return {"metadata": {"resourceVersion": "7"}, "items": [pod]}


_STATUS = {
    "kind": "Status",
    "code": 409,
    "reason": "Conflict",
    "message": "the object has been modified",
    "details": {"retryAfterSeconds": 1, "causes": [{"field": "metadata.uid", "message": "x"}]},
}
_META = {"name": "x", "namespace": "team", "uid": "u", "resourceVersion": "7", "labels": {"a": "b"}}
_OBJECTS: dict[str, dict[str, Any]] = {
    "": {"metadata": _META, "spec": {"minMember": 2, "minCount": 2, "replicas": 3}, "status": {"phase": "Pending"}},
    "Pod": pod_list("a", "b")["items"][0],
    "Node": {
        "metadata": _META,
        "spec": {"unschedulable": False, "taints": [{"key": "a", "value": "b", "effect": "NoSchedule"}]},
        "status": {
            "allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    },
    "ConfigMap": {"metadata": _META, "data": {"queues.yaml": "queues: []"}},
}
