"""The output of `kubectl inspect gpushare`, as scripts read it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cli.gpushare import details, summary
from shared.contracts.queries import InspectGpu, InspectNode, InspectPod


def gpu(index: int, mib: int, *pods: tuple[str, int]) -> InspectGpu:
    held = tuple(
        InspectPod(namespace="team", name=name, memory_mib=memory, compute_milli=0, state="bound")
        for name, memory in pods
    )
    return InspectGpu(
        uuid=f"GPU-{index}",
        index=index,
        model="Tesla-P4",
        state="healthy",
        memory_mib=mib,
        allocated_memory_mib=sum(memory for _, memory in pods),
        allocated_compute_milli=0,
        pods=held,
    )


NODES = [
    InspectNode(node="cn-shanghai.i-1", address="192.168.0.71", gpus=(gpu(0, 15_360, ("a", 6144)), gpu(1, 15_360))),
    InspectNode(node="cn-shanghai.i-22", gpus=(gpu(0, 15_360, ("b", 3072)),)),
]


def test_the_summary_has_a_line_for_each_node_in_whole_gib() -> None:
    assert summary(NODES).splitlines() == [
        "NAME              IPADDRESS     GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU Memory(GiB)",
        "cn-shanghai.i-1   192.168.0.71  6/15                   0/15                   6/30",
        "cn-shanghai.i-22  unknown       3/15                   0/0                    3/15",
        "-" * 93,
        "Allocated/Total GPU Memory In Cluster:",
        "9/45 (20%)",
    ]


def test_details_name_the_pods_of_each_node() -> None:
    assert details(NODES[:1]).splitlines() == [
        "",
        "NAME:       cn-shanghai.i-1",
        "IPADDRESS:  192.168.0.71",
        "",
        "NAME  NAMESPACE  GPU0(Allocated)  GPU1(Allocated)",
        "a     team       6                0",
        "Allocated :  6 (20%)",
        "Total :      30",
        "-" * 49,
        "",
        "",
        "Allocated/Total GPU Memory In Cluster:  6/30 (20%)",
    ]


def test_a_cluster_without_gpus_has_a_sum_of_nothing() -> None:
    assert summary([]).endswith("0/0 (0%)\n")


@pytest.mark.parametrize(("raised", "ended"), [("BrokenPipeError", 141), ("KeyboardInterrupt", 130)])
def test_it_ends_in_order_with_what_reads_it_and_when_it_is_interrupted(raised: str, ended: int) -> None:
    program = f"""
from cli import gpushare
async def run(_): raise {raised}
gpushare.run = run
gpushare.main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (ended, "")
