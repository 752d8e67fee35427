"""`kerf up`: all services in one process, until interrupted."""

from __future__ import annotations

import argparse
import asyncio
import signal
from pathlib import Path
from typing import Any

import msgspec

from cli.output import Failure, err
from cli.stack import quiet_logs, stack
from shared.bus.port import BusError
from shared.contracts import subjects
from shared.contracts.base import decode, encode
from shared.contracts.commands import SimAnswer, SimApply
from shared.formats import decode_yaml
from shared.kube.access import AccessError
from shared.model.mig import GEOMETRIES, geometry_of
from shared.model.network import NetworkLink
from shared.service import ConfigError, load

LINK_MIB_S = 12_000
"""A network of 100 Gbit/s, between simulated nodes."""


async def run(args: argparse.Namespace) -> None:
    quiet_logs()
    nodes, preemption = _nodes(args), _preemption(args.preemptor)
    try:
        await _until_stopped(args, nodes, preemption)
    except (BusError, AccessError, ConfigError) as error:
        raise Failure(str(error)) from error
    except OSError as error:
        ports = f"--port {args.port}, --http-port {args.http_port}, --metrics-port {args.metrics_port}"
        raise Failure(f"{error.strerror or error}; the ports are {ports}, and 0 takes a free one") from error


async def _until_stopped(args: argparse.Namespace, nodes: list[dict[str, Any]], preemption: dict[str, Any]) -> None:
    store = Path(args.store) if args.store else None
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sign, stop.set)
    async with stack(
        nodes,
        kubeconfig=args.kubeconfig,
        store=store,
        port=args.port,
        http_port=args.http_port,
        metrics_port=args.metrics_port,
        page_port=args.page_port,
        prices=args.prices,
        preemption=preemption,
    ) as made:
        if not args.kubeconfig:
            await apply(made.bus, [node_object(node) for node in nodes])
        err.print(f"[green]Kerf is up[/green] on {made.url} with {len(nodes)} simulated nodes. In another terminal:")
        err.print(f"  export KERF_NATS_URL={made.url}", soft_wrap=True)
        if made.page:
            err.print(f"  The live page: {made.page}", highlight=False)
        err.print("  kerf apply -f pod.yaml, kerf inspect, kerf why POD, kerf events, kerf delete POD")
        err.print("Ctrl-C ends it.")
        while not stop.is_set():
            if made.failed():
                raise Failure(f"a service ended by itself: {made.failed()}")
            if not made.server.runs:
                raise Failure("the embedded NATS server ended by itself, and everything with it; start `kerf up` again")
            try:
                await asyncio.wait_for(stop.wait(), 0.5)
            except TimeoutError:
                continue


def _nodes(args: argparse.Namespace) -> list[dict[str, Any]]:
    if args.kubeconfig:
        return []
    for option, amount, least in (
        ("--nodes", args.nodes, 0),
        ("--gpus", args.gpus, 0),
        ("--gpu-memory-mib", args.gpu_memory_mib, 1),
        ("--remote", args.remote, 0),
    ):
        if amount < least:
            raise Failure(f"{option} is {amount}; it must be at least {least}")
    if not 0 <= args.mig <= args.gpus:
        raise Failure(f"--mig is {args.mig}; it must be between 0 and the number of GPUs on a node, {args.gpus}")
    if args.mig and geometry_of(args.gpu_model, args.gpu_memory_mib) is None:
        raise Failure(
            f"--mig: how a {args.gpu_model} of {args.gpu_memory_mib} MiB is divided is not known; MIG is known of "
            f"{', '.join(geometry.name for geometry in GEOMETRIES)}, by --gpu-model and --gpu-memory-mib"
        )
    nodes = [
        {
            "name": f"node-{i}",
            "model": args.gpu_model,
            "count": args.gpus,
            "memory_mib": args.gpu_memory_mib,
            "firm": args.firm,
            "mig": dict.fromkeys(range(args.mig), ()),
        }
        for i in range(args.nodes)
    ]
    return _over_the_network(nodes, args.remote, args.rtt_us) if args.remote else nodes


def _over_the_network(nodes: list[dict[str, Any]], clients: int, rtt_us: int) -> list[dict[str, Any]]:
    """The nodes serve their GPUs to so many more without any."""
    try:
        link = NetworkLink(rtt_us=rtt_us, mib_s=LINK_MIB_S)
    except ValueError as error:
        raise Failure(f"--rtt-us: {error}") from error
    network = {str(node["name"]): {"rtt_us": link.rtt_us, "mib_s": link.mib_s} for node in nodes}
    serving = [node | {"remote": {"address": f"{node['name']}:14834"}} for node in nodes]
    return serving + [
        {"name": f"client-{i}", "count": 0, "remote": {"client": True, "network": network}} for i in range(clients)
    ]


def _preemption(given: list[str]) -> dict[str, Any]:
    """The preemptor's settings, by name."""
    named = [setting.partition("=") for setting in given]
    if bare := next((name for name, equals, _ in named if not equals), None):
        raise Failure(f"--preemptor {bare}: write a setting as NAME=VALUE, such as checkpoints=true")
    try:
        settings = {name: decode_yaml(value, Any) for name, _, value in named}
        msgspec.convert(settings, load("preemptor").config_type)
    except msgspec.DecodeError as error:
        raise Failure(f"--preemptor: {error}; docs/operators.md lists its settings") from error
    return settings


def node_object(node: dict[str, Any], *, cpu: str = "128", memory: str = "1024Gi") -> dict[str, Any]:
    """The Kubernetes Node of a simulated node, enrolled with Kerf."""
    capacity = {
        "cpu": node.get("cpu", cpu),
        "memory": node.get("memory", memory),
        "pods": "256",
        "ephemeral-storage": "1Ti",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": node["name"],
            "labels": {"kubernetes.io/hostname": node["name"], "kerf.dev/managed": "true"},
        },
        "spec": {"taints": [{"key": "kerf.dev/managed", "effect": "NoSchedule"}]},
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "InternalIP", "address": node.get("address", "127.0.0.1")}],
        },
    }


async def apply(bus: Any, objects: list[dict[str, Any]], *, batch: int = 50) -> SimAnswer:
    """Creates objects in the simulated cluster. Refusals come back as sentences."""
    applied = 0
    refusals: list[str] = []
    for start in range(0, len(objects), batch):
        order = SimApply(objects=tuple(msgspec.Raw(msgspec.json.encode(o)) for o in objects[start : start + batch]))
        answer = decode(await bus.request(subjects.SIM_APPLY, encode(order), timeout_s=60.0), SimAnswer)
        applied += answer.applied
        refusals += answer.refusals
    return SimAnswer(applied=applied, refusals=tuple(refusals))
