"""What is refused at the door, by name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from services.admission.dialects import dialects
from services.admission.dialects.base import Json, Place, amounts, containers, nonzero
from shared.model import names
from shared.model.autoscale import AutoscaleError, read_autoscale
from shared.model.gang import read_gang
from shared.model.kube_object import ANNOTATIONS_MAX_BYTES, annotations_bytes
from shared.model.life import read_life
from shared.model.objects import Container, Pod
from shared.model.request import RequestError
from shared.model.request_reader import has_gpu_request, read_request
from shared.model.resize import ResizeError, read_resize
from shared.model.units import QuantityError, quantity

RESOURCES = (*names.GPU_RESOURCES, names.RESOURCE_SLOT)
READ_ANNOTATIONS = (
    names.ANNOTATION_ISOLATION,
    names.ANNOTATION_GPU_MODEL,
    names.ANNOTATION_GPU_MODEL_NOT,
    names.ANNOTATION_GPU_UUID,
    names.ANNOTATION_GPU_UUID_NOT,
    names.ANNOTATION_GPU_GENERATION,
    names.ANNOTATION_GPU_MEMORY_MIN,
    names.ANNOTATION_GPU_CAPABILITY_MIN,
    names.ANNOTATION_GPU_MEMORY_LIMIT,
    names.ANNOTATION_GPU_COMPUTE_LIMIT,
    names.ANNOTATION_GPU_PREFER,
    names.ANNOTATION_TOPOLOGY,
    names.ANNOTATION_TOPOLOGY_MODE,
    names.ANNOTATION_POLICY,
    names.ANNOTATION_GPU_POLICY,
    names.ANNOTATION_GANG,
    names.ANNOTATION_GANG_SIZE,
    names.ANNOTATION_GANG_MIN,
    names.ANNOTATION_GANG_SUBGROUP,
    names.ANNOTATION_GANG_SUBGROUPS,
    names.ANNOTATION_GANG_TOPOLOGY,
    names.ANNOTATION_GANG_TIMEOUT,
    names.ANNOTATION_NIC,
    names.ANNOTATION_GPU_USE,
    names.ANNOTATION_REMOTE,
    names.ANNOTATION_GPU_CALLS,
    names.ANNOTATION_GPU_TRANSFER,
    names.ANNOTATION_MAX_SLOWDOWN,
    names.ANNOTATION_TIER,
    names.ANNOTATION_PREEMPTIBLE,
)
"""What placement reads to decide; after the decision a change would make the book and the pod disagree."""
_MOST_TEXT = 1024
_SIZE_CODES = {names.ANNOTATION_RESIZE: "bad-resize", names.ANNOTATION_AUTOSCALE: "bad-annotation"}
_MIRROR = "kubernetes.io/config.mirror"
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def typed(pod: Json) -> Pod:
    """The pod's known fields. Raises RequestError (malformed) naming the field that has another form than
    Kubernetes'."""
    try:
        return msgspec.convert(pod | {"kind": "Pod"}, Pod)
    except msgspec.ValidationError as error:
        # YAML's `cpu: 0.5` is a float, which the API server takes and shows to webhooks as text; older API servers show
        # an absent time as null.
        texts = _lenient(pod)
        if texts == pod:
            raise RequestError("malformed", f"this is no pod that can be read: {error}") from None
    try:
        return msgspec.convert(texts | {"kind": "Pod"}, Pod)
    except msgspec.ValidationError as error:
        raise RequestError("malformed", f"this is no pod that can be read: {error}") from None


def _lenient(value: Any, *, of_texts: bool = False) -> Any:
    """`of_texts`: in a map of texts null is the empty one, as Kubernetes reads it; elsewhere it is nothing."""
    if isinstance(value, dict) and of_texts:
        return {key: "" if item is None else _lenient(item) for key, item in value.items()}
    if isinstance(value, dict):
        return {
            key: _lenient(item, of_texts=key in ("annotations", "labels"))
            for key, item in value.items()
            if item is not None
        }
    if isinstance(value, list):
        return [_lenient(item) for item in value]
    return str(value) if isinstance(value, float) else value


KERFS_ALONE = (
    names.ANNOTATION_GRANT,
    names.ANNOTATION_SUSPENDED,
    names.ANNOTATION_GPU_TIME,
    names.ANNOTATION_PARKED,
)
"""A pod that wrote them would have GPUs without a decision, give up what other pods pay for, or have turns before
others."""


def check_life(pod: Pod) -> None:
    """Refuses what cannot be read of how the pod runs, and of how its slices change meanwhile."""
    read_life(pod)
    check_sizes(pod)


def check_sizes(pod: Pod) -> None:
    """Refuses `kerf.dev/resize` and `kerf.dev/autoscale` in a form that placement and preemptor would not read."""
    annotations = pod.metadata.annotations
    try:
        for key, read in ((names.ANNOTATION_RESIZE, read_resize), (names.ANNOTATION_AUTOSCALE, read_autoscale)):
            text = annotations.get(key)
            if text is not None and len(text) > _MOST_TEXT:
                raise RequestError(_SIZE_CODES[key], f"annotation {key} has more than {_MOST_TEXT} characters")
            if text:
                read(text)
    except ResizeError as error:
        raise RequestError(error.code, str(error)) from None
    except AutoscaleError as error:
        raise RequestError("bad-annotation", str(error)) from None


def check_names(named: Iterable[str]) -> None:
    """Refuses kerf.dev/ resources that do not exist: a node would never have them, and the pod would wait for ever."""
    for resource in sorted(named):
        if (
            resource.startswith(names.PREFIX)
            and not names.is_gpu_resource(resource)
            and resource not in (names.RESOURCE_SLOT, names.RESOURCE_QUOTA)
        ):
            near = difflib.get_close_matches(resource, RESOURCES, n=1, cutoff=0.6)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names.GPU_RESOURCES)}"
            raise RequestError("unknown-resource", f"{resource} is no resource of Kerf; {hint}")


def check_reserved(pod: Pod) -> None:
    """What only Kerf writes, refused at creation."""
    annotations = pod.metadata.annotations
    for name in KERFS_ALONE:
        if name in annotations:
            raise RequestError(
                "spoofed-grant",
                f"annotation {name} is written by Kerf when it has bound the pod; take it out of the manifest",
            )
    dialect = annotations.get(names.ANNOTATION_DIALECT)
    if dialect is not None and dialect not in (known := [d.name for d in dialects()]):
        raise RequestError(
            "bad-annotation",
            f"annotation {names.ANNOTATION_DIALECT} is {dialect!r}; it is written by admission, as one of "
            f"{', '.join(known)}",
        )
    trace = annotations.get(names.ANNOTATION_ADMISSION_TRACEPARENT)
    if trace is not None and not _TRACEPARENT.fullmatch(trace):
        raise RequestError(
            "bad-annotation",
            f"annotation {names.ANNOTATION_ADMISSION_TRACEPARENT} is {trace!r}; it is a W3C traceparent that "
            "admission writes, leave it out",
        )
    seen: set[str] = set()
    for container in (*pod.spec.containers, *pod.spec.init_containers):
        if container.name in seen:
            raise RequestError(
                "duplicate-container",
                f"two containers are named {container.name!r}; a grant is given by container name, so each "
                "needs its own",
            )
        seen.add(container.name)


def check_place(pod: Pod) -> None:
    """A GPU pod goes where Kerf puts it: not where a kubelet, a user or another scheduler did."""
    if _MIRROR in pod.metadata.annotations:
        raise RequestError(
            "static-pod",
            "a static pod cannot have GPUs, for its kubelet starts it without asking any scheduler; make it a "
            "DaemonSet or a Deployment",
        )
    if pod.spec.node_name:
        raise RequestError(
            "node-name-set",
            f"spec.nodeName is {pod.spec.node_name!r}; a pod with GPUs is placed by Kerf. Take nodeName out, "
            "and name the node in nodeSelector kubernetes.io/hostname instead",
        )
    scheduler = pod.spec.scheduler_name
    if scheduler not in ("", "default-scheduler", names.SCHEDULER_NAME):
        raise RequestError(
            "other-scheduler",
            f"spec.schedulerName is {scheduler!r}, and the pod asks for kerf.dev GPUs, which no node "
            f"advertises: only Kerf can place it. Leave schedulerName out or set it to {names.SCHEDULER_NAME}",
        )


def check_slots(pod: Json, users: frozenset[Place]) -> None:
    """kerf.dev/slot is 1 where GPUs are used, and is nowhere else: it is the token by which the kubelet counts
    containers."""
    for place, container in containers(pod):
        for value in (half[names.RESOURCE_SLOT] for half in amounts(container).values() if names.RESOURCE_SLOT in half):
            where = f"container {container.get('name', '')!r}"
            if place not in users and nonzero(value):
                raise RequestError(
                    "slot-without-gpu",
                    f"{where} has {names.RESOURCE_SLOT} and asks for no GPU; leave the slot out, admission "
                    f"writes it. Ask by {', '.join(names.GPU_RESOURCES)}",
                )
            if place in users and not is_amount(value, 1):
                raise RequestError(
                    "slot-count",
                    f"{where}: {names.RESOURCE_SLOT} is {value}; it is 1 for every container that uses GPUs, "
                    "however many. Leave it out, admission writes it",
                )


def check_quota(pod: Json, users: frozenset[Place]) -> None:
    """kerf.dev/quota-gpu-milli is where GPUs are used and nowhere else: it is no way to ask for one."""
    for place, container in containers(pod):
        for half in amounts(container).values():
            if place not in users and nonzero(half.get(names.RESOURCE_QUOTA, 0)):
                raise RequestError(
                    "quota-without-gpu",
                    f"container {container.get('name', '')!r} has {names.RESOURCE_QUOTA} and asks for no GPU; Kerf "
                    f"writes it for ResourceQuota. Ask by {', '.join(names.GPU_RESOURCES)}",
                )


def is_amount(value: object, number: int) -> bool:
    """Whether a quantity is this number, as the API server compares it: "1000m" is 1, and "1k" is 1000."""
    try:
        return quantity(str(value)) == number
    except QuantityError:
        return False


def check_ephemeral(pod: Json) -> None:
    found = _lenient((pod.get("spec") or {}).get("ephemeralContainers") or ())
    try:
        ephemeral = msgspec.convert(found, tuple[Container, ...])
    except msgspec.ValidationError as error:
        raise RequestError("malformed", f"spec.ephemeralContainers cannot be read: {error}") from None
    for container in ephemeral:
        if any(name.startswith(names.PREFIX) for name in (*container.resources.limits, *container.resources.requests)):
            raise RequestError(
                "ephemeral-gpu",
                f"ephemeral container {container.name!r} asks for a GPU; a debug container cannot "
                "have one of its own. Name targetContainerName and debug inside that container's share",
            )


def check_update(new: Pod, old: Pod, *, user: str, watchers: Iterable[str]) -> None:
    """After creation only the watcher writes the grant, and after binding no user changes what the decision was based
    on."""
    before, after = old.metadata.annotations, new.metadata.annotations
    for name in KERFS_ALONE:
        if before.get(name) != after.get(name) and user not in watchers:
            raise RequestError(
                "spoofed-grant", f"annotation {name} is Kerf's alone; {user or 'this user'} may not change it"
            )
    if before != after:
        read_life(new)
        if any(before.get(key) != after.get(key) for key in _SIZE_CODES):
            check_sizes(new)
    if not has_gpu_request(new):
        return
    if old.spec.node_name:
        for key in READ_ANNOTATIONS:
            if before.get(key) != after.get(key):
                raise RequestError(
                    "bound-annotation",
                    f"annotation {key} cannot change on a pod that is bound: its GPUs were chosen by "
                    f"{before.get(key)!r}. Create the pod again",
                )
        if (queue := old.metadata.labels.get(names.LABEL_QUEUE)) != new.metadata.labels.get(names.LABEL_QUEUE):
            raise RequestError(
                "bound-queue",
                f"label {names.LABEL_QUEUE} cannot change on a pod that is bound: its GPUs count for "
                f"{queue or 'the queue of its namespace'}. Create the pod again",
            )
    elif before != after:
        read_request(new)
        read_gang(new)


def tolerated(tolerations: Iterable[Json]) -> bool:
    """Whether the taint of enrolled nodes is tolerated already, by its key or by everything."""
    return any(
        t.get("key") in (names.TAINT_MANAGED, None, "")
        and t.get("operator") == "Exists"
        and t.get("effect") in ("NoSchedule", None, "")
        for t in tolerations
    )


def check_annotations_fit(pod: Pod) -> None:
    """Refuses what the API server refuses too, but only after the webhooks."""
    size = annotations_bytes(pod.metadata.annotations)
    if size > ANNOTATIONS_MAX_BYTES:
        raise RequestError(
            "annotations-too-large", f"the annotations have {size} bytes; they may have {ANNOTATIONS_MAX_BYTES} at most"
        )
