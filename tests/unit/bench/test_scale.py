"""What bench.scale reads and how it creates its pods, without a cluster."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bench.booked import Booked
from bench.scale import measured
from bench.scale.load import BACKLOG, FILL, MIX, Load, max_pods, pod_object
from shared.contracts.facts import Put
from shared.model.grant import ContainerGrant, GpuShare, Grant, encode_grant
from tests.support import build
from tests.support.waiting import eventually

TEXT = b"""# HELP kerf_a Things.
# TYPE kerf_a gauge
kerf_a{node="n0"} 1.0
kerf_a{node="n1"} 2.0
# TYPE kerf_b_seconds histogram
kerf_b_seconds_bucket{le="0.1"} 1
kerf_b_seconds_bucket{le="+Inf"} 1
kerf_b_seconds_sum 0.05
kerf_b_seconds_count 1
"""


def test_series_are_counted_by_metric() -> None:
    assert measured.series(TEXT) == {
        "kerf_a": 2,
        "kerf_b_seconds_bucket": 2,
        "kerf_b_seconds_sum": 1,
        "kerf_b_seconds_count": 1,
    }


def test_traffic_is_the_difference_of_two_readings_for_each_pod() -> None:
    before = measured.Traffic(in_msgs=10, in_bytes=1000, out_msgs=20, out_bytes=2000)
    after = measured.Traffic(in_msgs=30, in_bytes=5000, out_msgs=60, out_bytes=2000)
    assert after.since(before, 10) == {"in_msgs": 2.0, "in_bytes": 400.0, "out_msgs": 4.0, "out_bytes": 0.0}


def test_the_longest_gap_counts_from_the_begin_and_to_the_end() -> None:
    assert measured.longest_gap_s([1.0, 2.0, 9.0], 0.0, 10.0) == 7.0
    assert measured.longest_gap_s([], 3.0, 10.0) == 7.0
    assert measured.longest_gap_s([1.0, 2.0], 2.5, 10.0) == 7.5


def test_quantiles_are_values_that_occurred() -> None:
    assert measured.quantiles(range(1, 101)) == {"p50": 50, "p99": 99}
    assert measured.quantiles([]) == {"p50": 0.0, "p99": 0.0}


def test_processes_are_added_up_by_service() -> None:
    assert measured.added({"watcher-0": 1.5, "watcher-1": 2.0, "nats": 3.0}) == {"watcher": 3.5, "nats": 3.0}


def _bound(name: str, gpu: str, mib: int, milli: int) -> dict[str, Any]:
    share = GpuShare(node="n", uuid=gpu, memory_mib=mib, compute_milli=milli)
    grant = Grant(grant_id=name, term=1, containers={"c": ContainerGrant(strategy="advisory", gpus=(share,))})
    return {
        "metadata": {"name": name, "annotations": {"kerf.dev/grant": encode_grant(grant)}},
        "spec": {"nodeName": "n"},
    }


def test_a_double_booking_shows_across_pages_and_only_above_the_whole_gpu() -> None:
    booked = Booked()
    booked.add([_bound("a", "g", 40_960, 500), {"metadata": {"name": "waits"}, "spec": {}}])
    booked.add([_bound("b", "g", 40_960, 500)])
    assert (booked.bound, booked.doubled(81_920)) == (2, 0)
    booked.add([_bound("c", "g", 1024, 0)])
    assert (booked.bound, booked.doubled(81_920)) == (3, 1)


def test_as_many_pods_as_are_allowed_take_the_stated_part_of_the_gpus() -> None:
    """Over whole cycles of the mix, so that the last pods still fit."""
    gpus = 40_000
    taken = sum(count * milli for count, milli, _ in MIX) / sum(count for count, _, _ in MIX) * max_pods(gpus) / 1000
    assert gpus * FILL - 1 < taken <= gpus * FILL
    assert max_pods(gpus) >= 100_000
    wanted = [pod_object(i)["spec"]["containers"][0]["resources"]["limits"] for i in range(20)]
    assert all(wanted.count(limits) == count for count, _, limits in MIX)


class Cluster:
    """Answers creations; pods are bound when the test says so."""

    def __init__(self, target: int) -> None:
        self.created: list[str] = []
        self.load = Load(self._create, target)

    async def _create(self, made: dict[str, Any]) -> None:
        self.created.append(made["metadata"]["name"])

    def bind(self, *names: str, term: int = 1) -> None:
        grant = Grant(grant_id="g", term=term, containers={})
        pods = [build.bound(build.gpu_pod(name, namespace="bench", gpus=1), "n", grant) for name in names]
        self.load.take([Put(object=pod) for pod in pods])


async def test_no_more_pods_wait_than_the_backlog_allows() -> None:
    cluster = Cluster(BACKLOG + 100)
    creating = asyncio.create_task(cluster.load.create_all())
    await eventually(lambda: len(cluster.created) == BACKLOG)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(cluster.created) == BACKLOG
    cluster.bind(*cluster.created[:40])
    cluster.bind(*cluster.created[:40])  # a pod that is seen again does not count again
    await eventually(lambda: len(cluster.created) == BACKLOG + 40)
    assert not creating.done()
    cluster.bind(*cluster.created)
    await creating
    assert len(cluster.created) == BACKLOG + 100


async def test_of_each_bound_pod_the_term_of_its_decision_is_known() -> None:
    cluster = Cluster(3)
    cluster.bind("scale-0", "scale-1", term=4)
    cluster.bind("scale-1", "scale-2", term=9)
    assert cluster.load.terms == [4, 4, 9]


async def test_waiting_for_a_number_of_bound_pods_ends_when_they_are_seen() -> None:
    cluster = Cluster(3)
    await cluster.load.create_all()
    waiting = asyncio.create_task(cluster.load.reached(2))
    await asyncio.sleep(0)
    cluster.bind("scale-0")
    await asyncio.sleep(0)
    assert not waiting.done()
    cluster.bind("scale-1")
    await waiting
    assert len(cluster.load.times) == 2


async def test_a_gap_is_not_one_where_no_pod_waits() -> None:
    cluster = Cluster(2)
    now = asyncio.get_running_loop().time()
    await cluster.load.create_all()
    cluster.bind("scale-0")
    assert cluster.load.longest_gap_s(now - 100.0) >= 100.0
    cluster.bind("scale-1")
    cluster.load.times[:] = [now + 1.0, now + 8.0]
    assert cluster.load.longest_gap_s(now) == 7.0, "it ends with the last Binding"
    assert cluster.load.longest_gap_s(now + 9.0) == 0.0


async def test_a_latency_is_not_negative_where_the_watch_was_ahead() -> None:
    cluster = Cluster(1)
    cluster.bind("scale-0")
    await cluster.load.create_all()
    assert cluster.load.latencies_ms(0) == [pytest.approx(0.0)]
