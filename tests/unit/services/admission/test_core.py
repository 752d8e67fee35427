"""How admission rewrites valid pods."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.admission import manifest_warnings
from services.admission.core import TOLERATION, review
from services.admission.dialects import BUILT_IN, Setting
from services.admission.messages import Allowed, Policy, Refused, Request
from services.admission.patch import apply
from shared.model import names
from shared.model.objects import Pod
from shared.model.request_reader import read_request
from shared.model.units import quantity
from tests.support.manifests import load
from tests.unit.services.admission.pods import container, limits_of, pod

TRACE = f"00-{'1' * 32}-{'2' * 16}-01"
TAKES_NVIDIA = Policy(plain_nvidia_namespaces=("*",))


def admitted(manifest: dict[str, Any], policy: Policy | None = None, **request: Any) -> dict[str, Any]:
    """The pod after its review. Proves on the way that the review left its input alone."""
    before = copy.deepcopy(manifest)
    answer = review(Request(pod=manifest, **request), policy or Policy())
    assert manifest == before
    assert isinstance(answer, Allowed), answer
    return dict(apply(manifest, list(answer.patches)))


def test_a_canonical_pod_gets_scheduler_slot_and_toleration() -> None:
    """The kubelet counts a slot in limits and requests alike, and enrolled nodes are tainted."""
    spec = admitted(pod(container(gpu="1")))["spec"]
    assert spec["schedulerName"] == "kerf"
    assert spec["containers"][0]["resources"] == {
        half: {"kerf.dev/gpu": "1", "kerf.dev/slot": "1", "kerf.dev/quota-gpu-milli": "1000"}
        for half in ("limits", "requests")
    }
    assert spec["tolerations"] == [TOLERATION]


def test_limits_alone_are_enough() -> None:
    """Requests are filled in, as the API server's own defaulting does."""
    reviewed = admitted(pod({"name": "main", "resources": {"limits": {"kerf.dev/gpu-memory": "16Gi", "cpu": "1"}}}))
    assert reviewed["spec"]["containers"][0]["resources"]["requests"] == {
        "kerf.dev/gpu-memory": "16Gi",
        "kerf.dev/slot": "1",
        "kerf.dev/quota-gpu-milli": "200",
    }


def test_only_containers_with_gpus_get_a_slot() -> None:
    """A sidecar with a request gets a slice of its own; an init container shares its app's, which the kubelet passes
    on."""
    sidecar = container("side", memory="1Gi") | {"restartPolicy": "Always"}
    reviewed = admitted(
        pod(
            container("app", memory="8Gi"),
            container("plain"),
            init=[sidecar, container("init", memory="4Gi"), container("setup")],
        )
    )
    with_slot = [
        c["name"]
        for f in ("containers", "initContainers")
        for c in reviewed["spec"][f]
        if "kerf.dev/slot" in c.get("resources", {}).get("limits", {})
    ]
    assert with_slot == ["app", "side", "init"]


def test_an_init_container_with_gpus_causes_a_warning() -> None:
    answer = review(Request(pod=pod(container("app", gpu=1), init=[container("load", gpu=1)])), Policy())
    assert isinstance(answer, Allowed)
    assert any("'load'" in w and "#138446" in w for w in answer.warnings)


def test_every_annotation_of_a_pod_means_something() -> None:
    """One that is missing here earned the warning that it means nothing, with the advice to write another one."""
    known = {value for key, value in vars(names).items() if key.startswith("ANNOTATION_")}
    assert known - set(manifest_warnings._OWN_ANNOTATIONS) == {names.ANNOTATION_INVENTORY}, "which is a node's"


def test_no_warning_advises_what_is_refused() -> None:
    answer = review(Request(pod=pod(container(gpu=1), annotations={"kerf.dev/suspend": "x"})), Policy())
    assert isinstance(answer, Allowed)
    assert names.ANNOTATION_SUSPENDED not in answer.warnings[0]


def test_a_misspelt_annotation_causes_a_warning() -> None:
    answer = review(Request(pod=pod(container(gpu=1), annotations={"kerf.dev/isolaton": "hard"})), Policy())
    assert isinstance(answer, Allowed)
    assert answer.warnings == ("annotation kerf.dev/isolaton means nothing to Kerf; did you mean kerf.dev/isolation?",)


def test_thousands_of_unknown_annotations_are_counted_and_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each comparison costs a tenth of a millisecond, and other pods wait for their reviews."""
    compared: list[str] = []

    def compare(key: str, *_: Any, **__: Any) -> list[str]:
        compared.append(key)
        return []

    monkeypatch.setattr(manifest_warnings.difflib, "get_close_matches", compare)
    notes = {f"kerf.dev/n{number:04}": "" for number in range(5_000)}
    answer = review(Request(pod=pod(container(gpu=1), annotations=notes)), Policy())
    assert isinstance(answer, Allowed)
    assert len(compared) == 20
    assert answer.warnings[-1] == "4980 more annotations of the pod mean nothing to Kerf"


@pytest.mark.parametrize(
    "manifest",
    [
        pod(container()),
        pod(container(), schedulerName="kerf"),
        pod(container(cpu="2")),
        pod(container(nvidia=1)),
        pod(container(mem=0)),
        pod(container(nvidia=0)),
        pod(container(cpu=0.5)),
    ],
)
def test_a_pod_that_requests_no_gpu_from_kerf_passes_unchanged(manifest: dict[str, Any]) -> None:
    """Nor is nvidia.com/gpu touched without opt-in, nor an amount of zero."""
    assert admitted(manifest, traceparent=TRACE) == manifest


def test_an_absent_time_may_be_null() -> None:
    """Older API servers send metadata.creationTimestamp as null in admission requests."""
    manifest = pod(container(gpu="1"))
    manifest["metadata"]["creationTimestamp"] = None
    assert admitted(manifest)["spec"]["schedulerName"] == "kerf"


def test_the_trace_begins_here_and_only_once() -> None:
    first = admitted(pod(container(gpu="1")), traceparent=TRACE)
    assert first["metadata"]["annotations"]["kerf.dev/admission-traceparent"] == TRACE
    assert admitted(first, traceparent=TRACE.replace("1", "3")) == first


@pytest.mark.parametrize("toleration", [{"operator": "Exists"}, {"key": "kerf.dev/managed", "operator": "Exists"}])
def test_a_toleration_that_covers_it_is_enough(toleration: dict[str, str]) -> None:
    assert admitted(pod(container(gpu="1"), tolerations=[toleration]))["spec"]["tolerations"] == [toleration]


# --- gpushare ---------------------------------------------------------------------------------------------------


def test_gpushare_is_gib_and_soft() -> None:
    """`aliyun.com/gpu-mem: 3` is 3 GiB of one device, shared by agreement; the container gets the variables of that
    dialect."""
    reviewed = admitted(pod(container(mem="3")))
    assert limits_of(reviewed) == {"kerf.dev/gpu-memory": "3Gi", "kerf.dev/slot": "1"}
    assert reviewed["metadata"]["annotations"] == {"kerf.dev/isolation": "soft", "kerf.dev/dialect": "gpushare"}


def test_gpushare_may_be_mib_by_setting() -> None:
    reviewed = admitted(pod(container(mem="8138")), Policy(setting=Setting(gpushare_unit="MiB")))
    assert limits_of(reviewed)["kerf.dev/gpu-memory"] == "8138Mi"


def test_gpushare_over_two_devices_spreads_its_total() -> None:
    reviewed = admitted(pod(container(mem="8", count="2")))
    assert limits_of(reviewed) == {"kerf.dev/gpu": "2", "kerf.dev/gpu-memory": "8Gi", "kerf.dev/slot": "1"}


def test_a_users_isolation_outranks_the_dialects() -> None:
    reviewed = admitted(pod(container(mem="3"), annotations={"kerf.dev/isolation": "firm"}))
    assert reviewed["metadata"]["annotations"]["kerf.dev/isolation"] == "firm"


@pytest.mark.parametrize(
    ("scheduler", "taken"),
    [("", True), ("default-scheduler", True), ("kerf", True), ("gpushare-scheduler", True), ("volcano", False)],
)
def test_a_foreign_dialect_is_taken_only_from_the_default_or_its_own_scheduler(scheduler: str, taken: bool) -> None:
    manifest = pod(container(mem="3"), schedulerName=scheduler)
    assert (admitted(manifest) != manifest) == taken


def test_an_excluded_namespace_keeps_its_foreign_dialect() -> None:
    manifest = pod(container(mem="3"))
    assert admitted(manifest, namespace="kube-system") == manifest


# --- plain nvidia -----------------------------------------------------------------------------------------------


def test_plain_nvidia_is_taken_over_where_it_was_opted_in() -> None:
    """Whole GPUs; the old resource is removed from limits and requests."""
    reviewed = admitted(pod(container(nvidia="2")), TAKES_NVIDIA)
    assert limits_of(reviewed) == {"kerf.dev/gpu": "2", "kerf.dev/slot": "1"}
    assert "nvidia.com/gpu" not in reviewed["spec"]["containers"][0]["resources"]["requests"]


def test_plain_nvidia_by_namespace() -> None:
    policy = Policy(plain_nvidia_namespaces=("ml",))
    assert admitted(pod(container(nvidia="1")), policy, namespace="ml")["spec"]["schedulerName"] == "kerf"
    assert "schedulerName" not in admitted(pod(container(nvidia="1")), policy, namespace="other")["spec"]


def test_hamis_choice_of_gpus_beside_plain_nvidia_is_kept() -> None:
    """Lists with commas become Kerf's alternatives; an empty list is no constraint, and the pod's own Kerf annotations
    take precedence."""
    notes = {
        "nvidia.com/use-gputype": "Tesla V100-PCIE-32GB,A10",
        "nvidia.com/nouse-gputype": ",T4",
        "hami.io/gpu-use-uuid": "",
        "nvidia.com/nouse-gpuuuid": "GPU-1,GPU-2",
        "kerf.dev/gpu-uuid-not": "GPU-3",
    }
    asked = read_request(_typed(admitted(pod(container(nvidia="2"), annotations=notes), TAKES_NVIDIA)))
    assert asked is not None
    assert (asked.models, asked.models_not, asked.uuids, asked.uuids_not) == (
        ("A10", "Tesla-V100-PCIE-32GB"),
        ("T4",),
        (),
        ("GPU-3",),
    )


def test_hamis_use_of_the_same_name_is_not_plain() -> None:
    """There nvidia.com/gpu counts slices; reading it as whole GPUs would be wrong by far."""
    manifest = pod(container(nvidia="1", **{"nvidia.com/gpumem": "4000"}))
    assert limits_of(admitted(manifest, TAKES_NVIDIA))["kerf.dev/gpu-memory"] == "4000Mi"
    only_plain = Policy(plain_nvidia_namespaces=("*",), dialects=("nvidia",))
    assert admitted(manifest, only_plain) == manifest


# --- properties -------------------------------------------------------------------------------------------------

sizes = st.integers(1, 512)
gpushare_containers = st.builds(lambda m: container("x", mem=str(m)), sizes)
nvidia_containers = st.builds(lambda n: container("x", nvidia=str(n)), st.integers(1, 16))
canonical_containers = st.one_of(
    st.builds(lambda m: container("x", memory=f"{m}Mi"), sizes),
    st.builds(lambda g: container("x", gpu=str(g)), st.integers(1, 16)),
    st.builds(lambda m, c: container("x", memory=f"{m}Gi", compute=str(c)), sizes, st.integers(1, 100)),
)
plain = st.just(container("x"))


@st.composite
def manifests(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from([gpushare_containers, nvidia_containers, canonical_containers, plain]))
    drawn = draw(st.lists(kind | plain, min_size=1, max_size=4))
    annotations = draw(
        st.fixed_dictionaries(
            {}, optional={"kerf.dev/isolation": st.sampled_from(["soft", "firm", "hard"]), "team": st.just("a")}
        )
    )
    return pod(*[c | {"name": f"c{i}"} for i, c in enumerate(drawn)], annotations=annotations)


@given(manifests())
def test_a_reviewed_pod_passes_unchanged(manifest: dict[str, Any]) -> None:
    """Idempotent: the webhook may be called again, and a pod's own copy may be applied again."""
    first = admitted(manifest, TAKES_NVIDIA, traceparent=TRACE)
    assert admitted(first, TAKES_NVIDIA, traceparent=TRACE) == first


@given(
    st.lists(st.tuples(sizes, st.sampled_from([0, 1, 2, 4])), min_size=1, max_size=4), st.sampled_from(["GiB", "MiB"])
)
def test_gpushare_amounts_are_conserved_exactly(asked: list[tuple[int, int]], unit: Any) -> None:
    """No container gains or loses a byte in translation, and the canonical reading gives the same total in MiB."""
    containers = [
        container(f"c{i}", mem=str(m * (n or 1)), **({"count": str(n)} if n else {})) for i, (m, n) in enumerate(asked)
    ]
    reviewed = admitted(pod(*containers), Policy(setting=Setting(gpushare_unit=unit)))
    request = read_request(_typed(reviewed))
    assert request is not None
    for index, (memory, count) in enumerate(asked):
        total = memory * (count or 1) * (1024 if unit == "GiB" else 1)
        assert quantity(limits_of(reviewed, index)["kerf.dev/gpu-memory"]) == total * 1024 * 1024
        ask = request.asks[f"c{index}"]
        assert (ask.count, ask.count * ask.memory_mib) == (count or 1, total)


@example(1.0)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda x: (
            st.lists(x, max_size=3)
            | st.dictionaries(
                st.sampled_from(["limits", "requests", "kerf.dev/gpu", "name", "containers"]), x, max_size=3
            )
        ),
        max_leaves=8,
    )
)
def test_no_manifest_makes_the_review_raise(value: Any) -> None:
    """Any invalid value in place of resources gets an answer, not an exception."""
    for manifest in (
        pod({"name": "c", "resources": value}),
        {"spec": value},
        pod(container(gpu=value)),
        pod(value),
        pod(container(mem=value)),
    ):
        assert isinstance(review(Request(pod=manifest), TAKES_NVIDIA), Allowed | Refused)


def _typed(manifest: dict[str, Any]) -> Pod:
    import msgspec

    return msgspec.convert(manifest, Pod)


TAKES_VOLCANO = Policy(takeover_schedulers=("volcano",))
TAKES_DEFAULT = Policy(takeover_schedulers=("default-scheduler",))


def test_all_pods_of_a_scheduler_that_is_taken_over_are_kerfs() -> None:
    """With GPUs in that system's dialect, plain NVIDIA's or Kerf's, or without any: a gang has one scheduler."""
    without = admitted(pod(container(), schedulerName="volcano"), TAKES_VOLCANO)
    assert without == pod(container(), schedulerName="kerf", tolerations=[TOLERATION])
    plain = admitted(pod(container(nvidia=2), schedulerName="volcano"), TAKES_VOLCANO)
    assert (plain["spec"]["schedulerName"], limits_of(plain)["kerf.dev/gpu"]) == ("kerf", "2")
    own = admitted(pod(container(gpu=1), schedulerName="volcano"), TAKES_VOLCANO)
    assert own["spec"]["schedulerName"] == "kerf"
    vgpu = admitted(pod(container(**{"volcano.sh/vgpu-number": 1}), schedulerName="volcano"), TAKES_VOLCANO)
    assert vgpu["metadata"]["annotations"]["kerf.dev/dialect"] == "volcano"


def test_pods_of_other_schedulers_and_in_excluded_namespaces_stay() -> None:
    for manifest, namespace in (
        (pod(container(nvidia=2), schedulerName="kai-scheduler"), "default"),
        (pod(container()), "default"),
        (pod(container(nvidia=2), schedulerName="volcano"), "kube-system"),
    ):
        assert admitted(manifest, TAKES_VOLCANO, namespace=namespace) == manifest


def test_of_the_default_scheduler_pods_with_gpus_and_members_of_groups_are_taken_over() -> None:
    assert admitted(pod(container()), TAKES_DEFAULT) == pod(container())
    assert admitted(pod(container(nvidia=1)), TAKES_DEFAULT)["spec"]["schedulerName"] == "kerf"
    grouped = pod(container(), schedulingGroup={"podGroupName": "g"})
    assert admitted(grouped, TAKES_DEFAULT)["spec"]["schedulerName"] == "kerf"
    labelled = pod(container(), labels={"scheduling.x-k8s.io/pod-group": "g"})
    assert admitted(labelled, TAKES_DEFAULT)["spec"]["schedulerName"] == "kerf"


def test_a_kai_pod_without_gpus_that_is_taken_over_is_in_its_queue() -> None:
    manifest = pod(container(), labels={"kai.scheduler/queue": "vision"}, schedulerName="kai-scheduler")
    made = admitted(manifest, Policy(takeover_schedulers=("kai-scheduler",)))
    assert made["metadata"]["labels"]["kerf.dev/queue"] == "vision"
    assert made["spec"]["schedulerName"] == "kerf"


def test_a_pod_in_kerfs_words_of_a_kai_scheduler_that_is_taken_over_is_in_its_queue() -> None:
    """As the other pods of its gang are. A share by annotation beside it is one too many."""
    manifest = pod(container(gpu=1), labels={"kai.scheduler/queue": "a"}, schedulerName="kai-scheduler")
    policy = Policy(takeover_schedulers=("kai-scheduler",))
    made = admitted(manifest, policy)
    assert admitted(made, policy) == made
    assert (made["spec"]["schedulerName"], limits_of(made)["kerf.dev/gpu"]) == ("kerf", 1)
    assert made["metadata"]["labels"]["kerf.dev/queue"] == "a"
    manifest["metadata"]["annotations"] = {"gpu-fraction": "0.5"}
    answer = review(Request(pod=manifest), policy)
    assert isinstance(answer, Refused)
    assert answer.code == "mixed-dialects"


def test_the_webhook_is_called_for_every_resource_and_scheduler_of_a_dialect() -> None:
    """Its configuration lists them, since the API server cannot ask."""
    text = (Path(__file__).parents[4] / "k8s" / "24-webhook.yaml").read_text()
    for dialect in BUILT_IN:
        families = {"nvidia.com/gpu": "'nvidia.com/gpu'"}
        for resource in dialect.resources:
            family = (
                "k.matches('^nvidia[.]com/gpu-[0-9]+gb$')"
                if resource.endswith("gb") and "gpu-" in resource
                else "k.startsWith('nvidia.com/mig-')"
                if "/mig-" in resource
                else families.get(resource, f"'{resource}'")
            )
            assert family in text, resource
        for scheduler in dialect.schedulers:
            assert f"'{scheduler}'" in text, scheduler


def test_no_webhook_takes_over_pods_of_a_namespace_that_is_ignored() -> None:
    """Whatever else its labels say."""
    (webhooks,) = (document["webhooks"] for document in load("24-webhook") if "webhooks" in document)
    taking = [webhook for webhook in webhooks if not webhook["name"].endswith("profiles.kerf.dev")]
    assert len(taking) > 2
    for webhook in taking:
        excluded = webhook["namespaceSelector"]["matchExpressions"]
        assert {"key": "kerf.dev/ignore", "operator": "DoesNotExist"} in excluded, webhook["name"]
        system = {"operator": "NotIn", "values": ["kube-system", "kerf-system"]}
        assert {"key": "kubernetes.io/metadata.name", **system} in excluded, webhook["name"]


def test_a_scheduler_that_is_taken_over_brings_its_dialect() -> None:
    """So namespaces can move one by one: the dialect is read where their label says so, and nowhere else."""
    manifest = pod(container(nvidia=1, **{"nvidia.com/gpumem": 1000}), schedulerName="hami-scheduler")
    off = Policy(dialects=("gpushare",))
    assert admitted(manifest, off) == manifest
    moved = admitted(manifest, Policy(dialects=("gpushare",), takeover_schedulers=("hami-scheduler",)))
    assert limits_of(moved)["kerf.dev/gpu-memory"] == "1000Mi"
