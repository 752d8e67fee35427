"""The API server's policies and Python read the same pods, and must agree on the canonical request.

The policies (`k8s/20-` to `22-`) are CEL; the other reader is `services/admission` with `shared/model`.

The API server gets dry runs, so nothing is created. Every disagreement must be in one of the tables below.
"""

from __future__ import annotations

import copy
import http.client
import itertools
import json
import random
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.admission.core import Allowed, Policy, Refused, Request, review
from services.admission.dialects.base import containers, named_resources
from services.admission.profiles import Profile
from services.simulator.patch import json_patch
from shared.book.states import pod_state
from shared.model import names
from shared.model.objects import Pod
from shared.model.units import quantity
from tests.support import manifests
from tests.support.cluster import binaries_or_skip
from tests.support.waiting import eventually
from tests.unit.services.admission.pods import pod
from tools.control_plane import ControlPlane

pytestmark = pytest.mark.cluster
Json = dict[str, Any]
SEEDS = range(4)
PODS_PER_SEED = 150

ONLY_IN_PYTHON = {
    "memory-not-even": "a division over the container's GPUs",
    "compute-not-even": "a division over the container's GPUs",
    "init-larger-than-app": "a comparison between containers",
    "unknown-mig-profile": "profiles are a table of shared/model/mig.py, which grows with GPUs and not with policies",
    "mig-and-more": "the same table",
    "limit-below-request": "a comparison of a quantity in an annotation with the resources",
    "limit-not-allowed": "what the container requests, and how it is isolated",
}
"""Codes of pods that the API server admits, and why. Placement must refuse such a pod with the same code."""

ANNOTATIONS_ONLY_IN_PYTHON = {
    names.ANNOTATION_GPU_MODEL: "a list",
    names.ANNOTATION_GPU_MODEL_NOT: "a list",
    names.ANNOTATION_GPU_UUID: "a list",
    names.ANNOTATION_GPU_UUID_NOT: "a list",
    names.ANNOTATION_GPU_GENERATION: "a list",
    names.ANNOTATION_GPU_MEMORY_MIN: "a quantity in an annotation",
    names.ANNOTATION_GPU_MEMORY_LIMIT: "a quantity in an annotation",
    names.ANNOTATION_GPU_COMPUTE_LIMIT: "a quantity in an annotation",
    names.ANNOTATION_GPU_CAPABILITY_MIN: "a grammar of its own",
    names.ANNOTATION_EXPECTED_DURATION: "a grammar of its own",
    names.ANNOTATION_MIN_RUNTIME: "a grammar of its own",
    names.ANNOTATION_RESTART_COST: "a grammar of its own",
    names.ANNOTATION_GANG_MIN: "a comparison with the gang's size",
    names.ANNOTATION_GANG_SUBGROUP: "a name in the list of subgroups",
    names.ANNOTATION_GANG_SUBGROUPS: "a grammar of its own",
    names.ANNOTATION_GANG_TOPOLOGY: "a grammar of its own",
    names.ANNOTATION_GANG_INCOMPLETE: "a grammar of its own",
    names.ANNOTATION_GANG_TIMEOUT: "a number of an optional part of gangs",
}
"""Annotations whose values only Python checks, and why. Placement must refuse such a pod with the same code."""

NO_GPUS = "no GPUs"
"""The policies look only at pods that name a resource of Kerf's. Placement refuses the gang, or the word on preemption,
of other pods."""

GPUS = (None, "0", "1", 2, "3", "9", "64", "65", "0.5", "-1", "two", "1e30")
MEMORY = (None, "0", "1", "1Mi", "3Mi", "16Gi", 1 << 30, "65Ti", "-1Gi", "lots", "1e30")
COMPUTE = (None, "0", "30", 100, "101", "250", "30500m", "-1", "half", "1e30")
PERCENT = (None, None, None, "0", "50", 100, "101", "200", "-1", "all", "1e30")
SLOT = (None, None, None, None, None, None, "1", 1, "1000m", "0", "2", "-1", "none")
OTHERS = (None, None, None, None, None, None, "mig-1g.10gb", "mig-1g.11gb", "gpus", "gpu-mem")
ANNOTATIONS: dict[str, tuple[str, ...]] = {
    "isolation": ("soft", "firm", "policed", "hard", "strict", "", "Hard"),
    "topology": ("required", "preferred", "numa", "host", "yes", ""),
    "topology-mode": ("ring", "tree", ""),
    "gpu-prefer": ("cost", "speed", "both", ""),
    "policy": ("kerf", "binpack", "spread", "least-loaded-nearest", "fgd", ""),
    "gpu-policy": ("kerf", "binpack", "spread", "least-loaded-nearest", "fgd", ""),
    "nic": ("1", "8", "64", "65", "0", "01", "-1", "mlx5_0", ""),
    "tier": ("standard", "opportunistic", "gold", ""),
    "preemptible": ("true", "false", "never", ""),
    "gang": ("train", "none", "a.b-c", "Upper", "-a", "", "x" * 63, "x" * 64),
    "gang-size": ("1", "8", "08", "10000", "10001", "0", "-1", "owner", "many", "", "000001", "8.0"),
    "gang-min": ("1", "9", "none"),
    "gang-subgroup": ("head", "workers", ""),
    "gang-subgroups": ("head=1,workers=2@rack", "head", ""),
    "gang-incomplete": ("keep", "evict-after=600", "evict"),
    "gang-topology": ("required=rack", "near"),
    "gang-timeout": ("60", "soon"),
    "gpu-model": ("H200|H100", "|", "G" * 4097),
    "gpu-model-not": ("T4", ""),
    "gpu-uuid": ("GPU-1", " "),
    "gpu-uuid-not": ("GPU-1", "||"),
    "gpu-generation": ("Hopper", "Modern"),
    "gpu-memory-min": ("40Gi", "much"),
    "gpu-memory-limit": ("32Gi", "2Mi", "60%", "much"),
    "gpu-compute-limit": ("60", "10", "all"),
    "gpu-capability-min": ("8.0", "eight"),
    "expected-duration": ("90m", "long"),
    "min-runtime": ("10", "-1"),
    "restart-cost": ("1h30m", ""),
    "grant": ("{}", ""),
    "suspended": ("{}", ""),
    "parked": ("{}", ""),
}
SCHEDULERS = (None, None, None, "kerf", "default-scheduler", "", "volcano")
TOLERATIONS: tuple[list[Json] | None, ...] = (
    None,
    None,
    [],
    [{"operator": "Exists"}],
    [{"operator": "Exists", "effect": "NoSchedule"}],
    [{"operator": "Exists", "effect": "NoExecute"}],
    [{"key": "kerf.dev/managed", "operator": "Exists"}],
    [{"key": "kerf.dev/managed", "operator": "Equal", "value": "", "effect": "NoSchedule"}],
    [{"key": "other", "operator": "Exists"}, {"key": "kerf.dev/managed", "operator": "Exists", "effect": "NoSchedule"}],
    [{"key": "other", "value": "x"}],
)


class ApiServer:
    """Dry-run creations over one connection."""

    def __init__(self, plane: ControlPlane) -> None:
        context = ssl.create_default_context(cafile=str(plane.pki / "ca.crt"))
        context.load_cert_chain(plane.pki / "admin.crt", plane.pki / "admin.key")
        self.connection = http.client.HTTPSConnection("127.0.0.1", plane.port, context=context, timeout=30)
        self.exceptions: set[str] = set()
        """The codes and annotations of the tables above that were needed."""

    def create(self, manifest: Json, namespace: str = "default") -> tuple[Json | None, str]:
        """The pod as it would be stored, or None and the API server's message."""
        self.connection.request(
            "POST",
            f"/api/v1/namespaces/{namespace}/pods?dryRun=All",
            json.dumps(manifest),
            {"Content-Type": "application/json"},
        )
        response = self.connection.getresponse()
        answer = json.loads(response.read())
        assert response.status in (201, 400, 403, 422), answer
        return (answer, "") if response.status == 201 else (None, answer["message"])


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    binaries = binaries_or_skip()
    with tempfile.TemporaryDirectory(prefix="kerf-kube-") as state:
        made = ControlPlane(Path(state), binaries=binaries).start()
        try:
            manifests.apply_all(made, "00-", "1", "20-", "21-", "22-", "23-")
            manifests.wait_for_policies(made)
            for name in ("debug", "train", "misspelt"):
                labels = {"kerf.dev/profile": name}
                made.request("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
                account = {"metadata": {"name": "default"}}
                made.request("POST", f"/api/v1/namespaces/{name}/serviceaccounts", account)
            yield made
        finally:
            made.stop()


@pytest.fixture(scope="module")
def server(plane: ControlPlane) -> Iterator[ApiServer]:
    made = ApiServer(plane)
    yield made
    made.connection.close()


def in_python(manifest: Json, profile: Profile = "") -> Json | Refused:
    """The pod as the webhook completes it, or its refusal."""
    decided = review(Request(pod=copy.deepcopy(manifest)), Policy(profile=profile))
    return json_patch(manifest, list(decided.patches)) if isinstance(decided, Allowed) else decided


def disagreement(server: ApiServer, manifest: Json, *, same_code: bool = False, profile: Profile = "") -> str:
    """What the two say differently of a pod; empty if nothing. `same_code`: the pod has one fault at most, so both must
    name it alike. `profile`: the pod is created in the namespace of this name, which has that profile."""
    manifest = manifest | {"metadata": manifest["metadata"] | {"namespace": profile or "default"}}
    stored, message = server.create(manifest, profile or "default")
    ours = in_python(manifest, profile)
    if stored is None:
        code = manifests.code_of(message)  # none where Kubernetes itself refuses
        if not isinstance(ours, Refused):
            return f"the API server refuses ({message}), Python admits"
        return (
            f"the API server says [{code}], Python [{ours.code}]" if same_code and code not in ("", ours.code) else ""
        )
    placement = pod_state(msgspec.convert(stored | {"spec": stored["spec"] | {"resourceClaims": []}}, Pod)).refusal_code
    if isinstance(ours, Refused):
        if not (excepted := _exceptions(ours, stored)):
            return f"the API server admits, Python refuses: {ours.sentence} [{ours.code}]"
        server.exceptions |= excepted
        if not placement or (same_code and placement != ours.code):
            return f"placement says [{placement}], admission [{ours.code}]"
        return ""
    if (theirs := _form(stored)) != (form := _form(ours)):
        return f"the API server completes it to {theirs}, Python to {form}"
    again = in_python(stored, profile)
    return "" if again == stored else f"Python changes the pod that the API server has completed: {again}"


def _exceptions(refused: Refused, stored: Json) -> set[str]:
    """Why the API server may admit a pod that Python refuses."""
    found = {refused.code} & set(ONLY_IN_PYTHON)
    found |= {
        key
        for key in ANNOTATIONS_ONLY_IN_PYTHON
        if any(text in refused.sentence for text in (f"annotation {key} ", f"annotations: {key}:"))
    }
    about_any_pod = refused.code == "bad-gang" or f"annotation {names.ANNOTATION_PREEMPTIBLE} " in refused.sentence
    if about_any_pod and not any(map(names.is_gpu_resource, named_resources(stored))):
        found.add(NO_GPUS)
    return found


def _form(manifest: Json) -> Json:
    """What admission decides of a pod: scheduler, toleration, and each container's amounts as numbers. Kubernetes'
    own defaults are left out."""
    spec = manifest["spec"]
    state = pod_state(msgspec.convert(manifest, Pod))
    metadata = manifest["metadata"]
    return {
        "profile": (metadata.get("annotations") or {}).get(names.ANNOTATION_PROFILE),
        "scheduler": spec.get("schedulerName") or "default-scheduler",
        "tolerations": [
            {k: v for k, v in t.items() if v}
            for t in spec.get("tolerations") or ()
            if not t.get("key", "").startswith("node.kubernetes.io/")
        ],
        "limits": {
            c["name"]: {
                name: quantity(str(value))
                for name, value in ((c.get("resources") or {}).get("limits") or {}).items()
                if name.startswith(names.PREFIX)
            }
            for _, c in containers(manifest)
        },
        "request": state.request,
        "gang": state.gang,
        "refusal": state.refusal_code,
    }


def amounts(
    gpu: Any = None,
    memory: Any = None,
    compute: Any = None,
    slot: Any = None,
    other: Any = None,
    percent: Any = None,
) -> Json:
    named = {"gpu": gpu, "gpu-memory": memory, "gpu-compute": compute, "slot": slot, "gpu-memory-percent": percent}
    named |= {other: 1} if other else {}
    return {f"kerf.dev/{name}": value for name, value in named.items() if value is not None}


def container(name: str, limits: Json, requests: Json | None = None) -> Json:
    resources = {"limits": limits} | ({} if requests is None else {"requests": requests})
    return {"name": name, "image": "example", "resources": resources}


def asked(**limits: Any) -> Json:
    return container("a", amounts(**limits))


def annotated(**values: str) -> Json:
    return {f"kerf.dev/{name.replace('_', '-')}": value for name, value in values.items()}


def drawn(rng: random.Random) -> Json:
    """A random pod, most parts of which are valid."""

    def one(name: str) -> Json:
        if rng.random() < 0.25:
            return {"name": name, "image": "example"}
        sane = rng.random() < 0.6
        limits = (
            amounts(
                rng.choice((None, 1, 2)),
                rng.choice((None, "2Mi", "16Gi")),
                rng.choice((None, 0, 30, 100)),
                percent=rng.choice((None, None, 50, 100)),
            )
            if sane
            else amounts(*map(rng.choice, (GPUS, MEMORY, COMPUTE, SLOT, OTHERS, PERCENT)))
        )
        requests = rng.choice((None, None, None, dict(limits), {"cpu": "1"}, amounts(gpu=1), {}))
        return container(name, limits, requests)

    app = [one(f"app{i}") for i in range(rng.choice((1, 1, 1, 2, 3)))]
    init = [
        one(f"init{i}") | ({"restartPolicy": "Always"} if rng.random() < 0.5 else {})
        for i in range(rng.choice((0, 0, 0, 1, 2)))
    ]
    keys = rng.sample(sorted(ANNOTATIONS), rng.choice((0, 0, 0, 0, 0, 1, 1, 2)))
    if rng.random() < 0.15:
        keys = ["gang", "gang-size"]
    spec: Json = {
        "schedulerName": rng.choice(SCHEDULERS),
        "tolerations": rng.choice(TOLERATIONS),
        "nodeName": rng.choice((None,) * 9 + ("n1",)),
        "resourceClaims": rng.choice((None,) * 5 + ([{"name": "c", "resourceClaimName": "c"}],)),
    }
    return pod(
        *app,
        init=init,
        annotations={f"kerf.dev/{key}": rng.choice(ANNOTATIONS[key]) for key in keys},
        **{field: value for field, value in spec.items() if value is not None},
    )


def one_fault() -> Iterator[Json]:
    """Pods with one fault, or none: each value by itself in a pod that is valid otherwise."""
    for name, values in ANNOTATIONS.items():
        beside = {"gang": {"gang-size": "8"}, "gang-size": {"gang": "train"}}.get(name, {})
        beside |= {"gang": "train", "gang-size": "8"} if name in ("gang-min", "gang-incomplete") else {}
        beside |= {"gang": "train", "gang-subgroup": "head"} if name == "gang-subgroups" else {}
        beside |= {"gang": "train", "gang-subgroups": "head=1"} if name == "gang-subgroup" else {}
        for value, others in itertools.product(values, ({}, beside)):
            yield pod(asked(gpu=1), annotations=annotated(**others, **{name: value}))
            yield pod(container("a", {}), annotations=annotated(**others, **{name: value}), schedulerName="kerf")
    for name in ("gpu-memory-limit", "gpu-compute-limit"):
        yield from (
            pod(asked(memory="16Gi", compute=30), annotations=annotated(**{name: value})) for value in ANNOTATIONS[name]
        )
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "1", "controller": True}
    owned = pod(asked(gpu=1), annotations=annotated(gang="train", gang_size="owner"))
    yield owned | {"metadata": owned["metadata"] | {"ownerReferences": [job]}}
    yield from (pod(asked(gpu=1, slot=slot)) for slot in SLOT)
    yield from (pod(asked(slot=slot)) for slot in SLOT)
    yield from (pod(asked(gpu=1, other=other)) for other in OTHERS)
    yield from (pod(asked(other=other)) for other in OTHERS)
    yield from (pod(asked(gpu=1), container("b", {"kerf.dev/gpus": zero, **amounts(slot=zero)})) for zero in ("0", 0))
    yield from (pod(asked(gpu=gpu)) for gpu in GPUS)
    yield from (pod(asked(gpu=gpu, memory="576Gi")) for gpu in GPUS)
    yield from (pod(asked(gpu=3, memory="16Gi")), pod(asked(gpu=3, compute=100)), pod(asked(gpu=8, memory="8Mi")))
    yield from (pod(asked(gpu=1, memory=memory)) for memory in MEMORY)
    yield from (pod(asked(memory=memory)) for memory in MEMORY)
    yield from (pod(asked(gpu=1, compute=compute)) for compute in COMPUTE)
    yield from (pod(asked(compute=compute)) for compute in COMPUTE)
    yield from (pod(asked(gpu=gpu, percent=percent)) for gpu in (None, 1, 2) for percent in PERCENT)
    yield from (pod(asked(compute=compute, percent=100)) for compute in COMPUTE)
    yield from (pod(asked(memory=memory, percent=50)) for memory in MEMORY if memory != "1")
    yield pod(asked(gpu=3, percent=100))
    yield from (pod(container("a", {"kerf.dev/mig-1g.10gb": count, **amounts(gpu="0")})) for count in GPUS[1:])
    yield from (pod(asked(gpu=1), schedulerName=scheduler) for scheduler in SCHEDULERS if scheduler is not None)
    for written in (None, "0", "1", "999", "1000", "-1"):
        limits = {} if written is None else {names.RESOURCE_QUOTA: written}
        yield pod(container("a", amounts(gpu=1) | limits))
        yield pod(container("a", amounts(gpu=1) | limits, amounts(gpu=1) | limits))
        yield pod(container("a", limits))
        yield pod(asked(gpu=1), container("b", limits))
    for profile in ("1g.10gb", "1g.10gb.me", "7g.141gb", "4g.24gb", "3g.1000gb", "8g.80gb", "1g", "gb"):
        yield from (pod(container("a", {f"kerf.dev/mig-{profile}": count})) for count in ("1", "3", 64))
    yield from (pod(asked(gpu=1), tolerations=tolerations) for tolerations in TOLERATIONS if tolerations is not None)
    for claims in ([{"name": "c", "resourceClaimName": "c"}], []):
        for scheduler in ("kerf", "default-scheduler"):
            yield pod(container("a", {"cpu": "1"}), schedulerName=scheduler, resourceClaims=claims)
    init = container("load", amounts(gpu=1))
    yield from (pod(asked(gpu=gpu), init=[init]) for gpu in (1, 2, None))
    yield pod(asked(), init=[init | {"restartPolicy": "Always"}])
    yield pod(asked(gpu=1), asked(gpu=1))
    yield pod(asked(gpu=1), ephemeralContainers=[container("debug", amounts(gpu=1))])
    yield pod(asked(gpu=1), resources={"limits": amounts(gpu=1)})
    yield pod(asked(gpu=1), nodeName="n1")
    for node in ({}, {"nodeName": "n1"}):
        yield pod(asked(gpu=1), annotations={"kubernetes.io/config.mirror": "x"}, **node)
    for requests in (amounts(gpu=2), amounts(), {"cpu": "1"}, amounts(gpu=1, slot=1), amounts(gpu=1, slot=2)):
        yield pod(container("a", amounts(gpu=1), requests))
    yield pod(container("a", {}, amounts(gpu=1)))


def _report(found: list[tuple[str, Json]]) -> str:
    return f"{len(found)} disagreements\n" + "\n".join(f"{text}\n  {json.dumps(pod)}" for text, pod in found[:12])


def test_both_refuse_a_fault_with_the_same_code(server: ApiServer) -> None:
    found = [(text, case) for case in one_fault() if (text := disagreement(server, case, same_code=True))]
    assert not found, _report(found)
    assert server.exceptions == {*ONLY_IN_PYTHON, *ANNOTATIONS_ONLY_IN_PYTHON, NO_GPUS}, "an exception is stale"


def test_both_agree_on_every_combination_of_amounts(server: ApiServer) -> None:
    cases = [pod(asked(gpu=g, memory=m, compute=c)) for g, m, c in itertools.product(GPUS, MEMORY, COMPUTE)]
    found = [(text, case) for case in cases if (text := disagreement(server, case))]
    assert not found, _report(found)


@pytest.mark.parametrize("seed", SEEDS)
def test_both_agree_on_random_pods(server: ApiServer, seed: int) -> None:
    rng = random.Random(seed)
    cases = [drawn(rng) for _ in range(PODS_PER_SEED)]
    found = [(text, case) for case in cases if (text := disagreement(server, case))]
    assert not found, _report(found)
    admitted = [case for case in cases if not isinstance(in_python(case), Refused)]
    assert PODS_PER_SEED / 10 < len(admitted) < PODS_PER_SEED * 9 / 10, "nearly all pods are admitted, or refused"


@pytest.mark.parametrize("profile", ["debug", "train"])
def test_both_fill_in_and_refuse_alike_where_the_namespace_has_a_profile(server: ApiServer, profile: Profile) -> None:
    """Each combination of amounts, and random pods: CEL reads the namespace's label, Python is told the profile."""
    some = ((None, 0, 1, 2, 65), (None, "0", "16Gi"), (None, 0, 30, 100, 200), (None, 0, 50, 100, 200))
    cases = [pod(asked(gpu=g, memory=m, compute=c, percent=p)) for g, m, c, p in itertools.product(*some)]
    cases += [pod(asked(gpu=1), annotations={"kerf.dev/isolation": level}) for level in ("soft", "firm", "hard")]
    cases += [pod(asked(gpu=2), container("b", amounts(gpu=1), amounts(gpu=1)), init=[container("i", amounts(gpu=1))])]
    cases += [pod(container("a", {"kerf.dev/mig-1g.10gb": 1}))]
    rng = random.Random(profile)
    cases += [drawn(rng) for _ in range(PODS_PER_SEED)]
    found = [(text, case) for case in cases if (text := disagreement(server, case, profile=profile))]
    assert not found, _report(found)
    assert f"profile-{profile}" in {one.code for case in cases if isinstance(one := in_python(case, profile), Refused)}


def test_a_profile_is_named_in_the_refusal_and_an_unknown_one_is_refused(server: ApiServer) -> None:
    for namespace, case, code in (
        ("train", pod(asked(memory="16Gi")), "profile-train"),
        ("debug", pod(asked(gpu=1), annotations={"kerf.dev/isolation": "hard"}), "profile-debug"),
        ("misspelt", pod(asked(gpu=1)), "profile-unknown"),
    ):
        stored, message = server.create(case | {"metadata": case["metadata"] | {"namespace": namespace}}, namespace)
        assert (stored, manifests.code_of(message)) == (None, code)


async def test_a_complete_pod_is_filled_in_whatever_the_order_of_the_policies(
    plane: ControlPlane, server: ApiServer
) -> None:
    """As one that was copied from a namespace without a profile. The API server calls policies in an order that changes
    each time it reads them anew, which a changed one shows."""
    complete, _ = server.create(pod(asked(gpu=1)))
    assert complete is not None
    copied = {
        "metadata": {"name": "copied", "namespace": "debug"},
        "spec": {key: complete["spec"][key] for key in ("containers", "schedulerName", "tolerations")},
    }
    assert copied["spec"]["containers"][0]["resources"]["limits"]["kerf.dev/quota-gpu-milli"] == "1k"
    (amounts,) = [
        one for one in manifests.load("20-") if one["metadata"]["name"] == "kerf-amounts" and "mutations" in one["spec"]
    ]
    for percent in (30, 35, 40, 45, 50, 55, 60, 25):
        changed = json.loads(json.dumps(amounts).replace("25 * quantity(", f"{percent} * quantity("))
        assert manifests.apply(plane, changed)[0] == 200

        def filled_in(percent: int = percent) -> bool:
            stored, message = server.create(copied, "debug")
            assert stored is not None, message
            limits = stored["spec"]["containers"][0]["resources"]["limits"]
            assert limits["kerf.dev/quota-gpu-milli"] == str(10 * int(limits["kerf.dev/gpu-memory-percent"]))
            return bool(limits["kerf.dev/gpu-memory-percent"] == str(percent))

        await eventually(filled_in, what=f"the policy with {percent} percent")


def test_a_pod_of_many_containers_is_completed(server: ApiServer) -> None:
    many = [container(f"c{i}", amounts(memory="1Gi")) for i in range(100)]
    assert disagreement(server, pod(*many)) == ""
    fault = pod(*many, container("last", amounts(memory="1")))
    assert disagreement(server, fault, same_code=True) == ""
    assert isinstance(refused := in_python(fault), Refused)
    assert refused.code == "memory-too-small"
