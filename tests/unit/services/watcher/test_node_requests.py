"""Sums of requests by node, and when what a node advertises must be raised."""

from __future__ import annotations

from services.watcher.node_requests import KEEP_RAISED_S, SETTLE_S, NodeRequests
from tests.support import build

COMPUTE = "kerf.dev/gpu-compute"


def node(amount: int) -> build.Node:
    return build.node("n", **{COMPUTE: str(amount)})


def half(name: str, **rest: object) -> build.Pod:
    return build.gpu_pod(name, compute=50, **rest)


def test_amounts_are_raised_only_when_the_sum_would_exceed_them() -> None:
    requests = NodeRequests()
    raised = []
    for name in ("a", "b", "c"):
        requests.count(half(name), "n")
        raised.append(requests.raised(node(100), 0.0))
    assert raised == [{}, {}, {COMPUTE: 188}]


def test_what_a_node_does_not_advertise_is_never_raised() -> None:
    """The kubelet does not count it either."""
    requests = NodeRequests()
    requests.count(half("a"), "n")
    assert requests.raised(build.node("n"), 0.0) == {}


def test_a_pod_counts_from_its_binding_to_its_end_and_once() -> None:
    requests = NodeRequests()
    pod = half("a")
    requests.count(pod, "n")
    requests.pod_seen(pod)  # still pending: another condition
    requests.pod_seen(build.bound(pod, "n"))
    assert dict(requests.count(half("b"), "n")) == {COMPUTE: 100}
    requests.pod_seen(build.newer(build.bound(pod, "n"), phase="Succeeded"))
    assert dict(requests.count(half("c"), "n")) == {COMPUTE: 100}
    requests.forget(half("b").metadata.uid)
    requests.forget(half("b").metadata.uid)
    assert dict(requests.count(half("d"), "n")) == {COMPUTE: 100}


def test_pods_without_gpus_come_and_go_on_a_node_one_after_the_other() -> None:
    requests = NodeRequests()
    pods = [build.bound(build.pod(name), "n") for name in ("a", "b")]
    for pod in pods:
        requests.pod_seen(pod)
    for pod in pods:
        requests.forget(pod.metadata.uid)
    assert dict(requests.count(half("c"), "n")) == {COMPUTE: 50}


def test_pods_that_ask_for_0_come_and_go_on_a_node() -> None:
    """Anyone may create them, for example with `kerf.dev/quota-gpu-milli: 0`."""
    requests = NodeRequests()
    zero = {"kerf.dev/quota-gpu-milli": "0"}
    none = [build.bound(build.pod(name, limits=zero), "n") for name in ("a", "b", "c")]
    for pod in none[:2]:
        requests.pod_seen(pod)
    requests.forget(none[0].metadata.uid)
    requests.pod_seen(none[2])
    for pod in none[1:]:
        requests.forget(pod.metadata.uid)
    assert dict(requests.count(half("d"), "n")) == {COMPUTE: 50}


def test_a_pod_that_was_bound_elsewhere_counts_there() -> None:
    requests = NodeRequests()
    pod = half("a")
    requests.count(pod, "m")
    requests.pod_seen(build.bound(pod, "n"))
    assert dict(requests.count(half("b"), "m")) == {COMPUTE: 50}
    assert dict(requests.count(half("c"), "n")) == {COMPUTE: 100}


def test_a_node_advertises_at_least_what_its_pods_request() -> None:
    requests = NodeRequests()
    for name in ("a", "b", "c"):
        requests.count(half(name), "n")
    assert requests.to_write(node(150), {COMPUTE: 100}, 0.0) == {}
    assert requests.to_write(node(0), {COMPUTE: 100}, 0.0) == {COMPUTE: 150}
    assert requests.to_write(build.node("n"), {COMPUTE: 400}, 0.0) == {COMPUTE: 400}


def test_a_raised_amount_is_kept_for_a_while_and_then_lowered() -> None:
    requests = NodeRequests()
    for name in ("a", "b", "c"):
        requests.count(half(name), "n")
    raised = requests.raised(node(100), 0.0)
    for name in ("a", "b", "c"):
        requests.forget(half(name).metadata.uid)
    high = node(raised[COMPUTE])
    assert requests.to_write(high, {COMPUTE: 100}, KEEP_RAISED_S - 1) == {}
    assert requests.to_write(high, {COMPUTE: 100}, KEEP_RAISED_S + 1) == {COMPUTE: 100}


def test_what_another_watcher_has_raised_is_not_lowered_before_its_binding_is_seen() -> None:
    """Orders go to any of the watchers: the one that is told to advertise has not seen the pod on the node yet."""
    one, other = NodeRequests(), NodeRequests()
    for name in ("a", "b"):
        one.count(half(name), "n")
        other.pod_seen(build.bound(half(name), "n"))
    third = half("c")
    one.count(third, "n")
    high = node(one.raised(node(100), 0.0)[COMPUTE])
    assert other.to_write(high, {COMPUTE: 100}, 0.0) == {}
    other.pod_seen(build.bound(third, "n"))
    assert other.to_write(high, {COMPUTE: 100}, SETTLE_S + 1) == {}
    assert other.to_write(high, {COMPUTE: 100}, KEEP_RAISED_S + 1) == {COMPUTE: 150}


def test_a_node_with_fewer_gpus_than_before_advertises_less_after_a_moment() -> None:
    requests = NodeRequests()
    assert requests.to_write(node(800), {COMPUTE: 700}, 0.0) == {}
    assert requests.to_write(node(800), {COMPUTE: 700}, SETTLE_S + 1) == {COMPUTE: 700}
