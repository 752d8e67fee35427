"""`kerf`, and `kubectl kerf`."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Coroutine
from typing import Any

from cli.output import run_command, use_any_encoding
from shared.model.policies import POLICIES
from shared.version import version

_COMPLETION = """\
bash: source <(kerf completion bash)
zsh:  source <(kerf completion zsh)
fish: kerf completion fish | source
"""


def main() -> None:
    use_any_encoding()
    args = parser().parse_args()
    module, _, function = args.run.partition(":")
    command: Callable[[argparse.Namespace], Coroutine[Any, Any, None]] = getattr(
        importlib.import_module(f"cli.{module}"), function or "run"
    )
    run_command(command(args))


def parser() -> argparse.ArgumentParser:
    """All commands with their options."""
    made = argparse.ArgumentParser(
        prog="kerf", description="GPU sharing for Kubernetes: see what each pod has, why, and since when."
    )
    made.add_argument("--version", action="version", version=f"kerf {version()}")
    commands = made.add_subparsers(title="commands", metavar="COMMAND", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--nats", default="", metavar="URL", help="the NATS server (default: KERF_NATS_URL, else nats://127.0.0.1:4222)"
    )
    common.add_argument("--json", action="store_true", help="one JSON object on stdout")
    pod = argparse.ArgumentParser(add_help=False)
    pod.add_argument("pod", help="name, or namespace/name")
    pod.add_argument("-n", "--namespace", default="default")

    def add(name: str, run: str, text: str, *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text, parents=[common, *parents])
        command.set_defaults(run=run)
        return command

    _cluster(add)

    demo = add("demo", "demo", "replay openb pods on openb nodes, and show what happened")
    demo.add_argument("--pods", type=int, default=1000)
    demo.add_argument("--stay", action="store_true", help="go on with the live page until Ctrl-C")
    demo.add_argument(
        "--kube", action="store_true", help="on a real Kubernetes API server (built or found by tools/build.sh)"
    )

    apply = add("apply", "apply", "create objects in the simulated cluster of `kerf up`")
    apply.add_argument("-f", "--file", required=True, help="YAML or JSON, - for standard input")

    delete = add("delete", "delete", "delete objects from the simulated cluster of `kerf up`")
    delete.add_argument("target", nargs="*", metavar="[KIND] NAME", help="such as train, team/train or node node-0")
    delete.add_argument("-n", "--namespace", default="default")
    delete.add_argument("-f", "--file", default="", help="the objects of a manifest instead, - for standard input")

    inspect = add("inspect", "inspect", "GPUs by node: allocated and total")
    inspect.add_argument("node", nargs="?")
    inspect.add_argument("-d", "--details", action="store_true", help="with pods")

    _holding_back(add)
    _resize(add, pod)
    _questions(add, pod)

    events = add("events", "events", "the public event stream, live")
    events.add_argument("-n", "--namespace", default="", help="only this namespace's")
    events.add_argument("--count", type=int, default=0, help="stop after so many")

    doctor = add("doctor", "doctor", "whether the installation is well, and what to do; status 1 if not")
    doctor.add_argument("--kubeconfig", default="", help="of the cluster (default: KUBECONFIG, else the pod's account)")
    doctor.add_argument("--context", default="", help="of the kubeconfig")

    add("queues", "queues", "what each queue has, may have and waits for")
    completion = commands.add_parser("completion", help="completes commands and options in a shell", epilog=_COMPLETION)
    completion.formatter_class = argparse.RawDescriptionHelpFormatter
    completion.set_defaults(run="completion")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
    add("trace", "trace", "the span tree of one pod", pod)
    top = add("top", "top", "the cluster in figures, and which pods use it")
    top.add_argument("--by", choices=("namespace", "pod", "model"), default="namespace")
    _cost(add)
    _shadow(commands)
    return made


def _shadow(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "watch a cluster that another scheduler runs, and tell what Kerf would have done; nothing is changed there"
    shadow = commands.add_parser("shadow", help=text, description=text)
    shadow.set_defaults(run="shadow")
    shadow.add_argument("--kubeconfig", default="", help="of the cluster (default: KUBECONFIG, else the pod's account)")
    shadow.add_argument("--context", default="", help="of the kubeconfig")
    shadow.add_argument(
        "-n", "--namespace", action="append", default=[], help="only this namespace's pods; may be given more than once"
    )
    shadow.add_argument(
        "--for", dest="duration", default="", metavar="TIME", help="such as 30m or 1h (default: until Ctrl-C)"
    )
    shadow.add_argument("--every", default="1m", metavar="TIME", help="how often to print a report (default 1m)")
    shadow.add_argument("--record", default="", metavar="FILE", help="write what is seen into this new file")
    shadow.add_argument("--replay", default="", metavar="FILE", help="report on a recording instead of a cluster")
    shadow.add_argument("--policy", default="kerf", choices=POLICIES, help="Kerf's placement policy (default kerf)")
    shadow.add_argument("--pages", default="", metavar="DIR", help="a text file for each difference, with all GPUs")
    shadow.add_argument("--json", action="store_true", help="one JSON object on stdout, at the end")
    text = "a recording of kerf shadow on other nodes: what waits how long, and how many nodes are enough"
    plan = commands.add_parser("plan", help=text, description=text)
    plan.set_defaults(run="shadow:plan")
    plan.add_argument("--events", required=True, metavar="FILE", help="a recording, by kerf shadow --record")
    plan.add_argument("--nodes", required=True, metavar="FILE", help="kinds of nodes in YAML (docs/shadow.md)")
    plan.add_argument("--policy", default="kerf", choices=POLICIES, help="Kerf's placement policy (default kerf)")
    plan.add_argument(
        "--enough", default="", metavar="TIME", help="the fewest nodes of the last kind for a p99 wait of, such as, 60s"
    )
    plan.add_argument("--json", action="store_true", help="one JSON object on stdout")


def _cost(add: Callable[..., argparse.ArgumentParser]) -> None:
    cost = add("cost", "cost", "what the slices of a period cost, and what was idle")
    cost.add_argument("--by", default="namespace", help="namespace (default), pod, model or label:KEY")
    cost.add_argument("--month", default="", metavar="YYYY-MM", help="a calendar month, UTC (default: this one)")
    cost.add_argument("--since", default="", metavar="DATE", help="a date or a time, such as 2026-11-01")
    cost.add_argument("--until", default="", metavar="DATE", help="the end, not included (default: now)")
    cost.add_argument(
        "--format", default="table", metavar="FORM", help="table (default), csv, json or report (Markdown)"
    )
    cost.add_argument("--most", type=int, default=1000, help="how many rows at most (default 1000)")


def _cluster(add: Callable[..., argparse.ArgumentParser]) -> None:
    up = add("up", "up", "run all of Kerf in this process, over a NATS server of its own")
    up.add_argument("--nodes", type=int, default=4, help="simulated nodes (default 4)")
    up.add_argument("--gpus", type=int, default=8, help="GPUs on each (default 8)")
    up.add_argument("--gpu-model", default="NVIDIA-H200")
    up.add_argument("--gpu-memory-mib", type=int, default=143_771)
    up.add_argument(
        "--firm",
        action="store_true",
        help="the simulated nodes say that they enforce slices: pods may be throttled, paused and so on",
    )
    up.add_argument(
        "--remote",
        type=int,
        default=0,
        metavar="NODES",
        help="so many nodes without GPUs, whose pods may use GPUs of the others over the network (default 0)",
    )
    up.add_argument(
        "--rtt-us",
        type=int,
        default=10,
        metavar="US",
        help="the round trip between these nodes and the others, as if their agents had measured it (default 10)",
    )
    up.add_argument(
        "--mig",
        type=int,
        default=0,
        metavar="GPUS",
        help="so many GPUs of each node are in MIG mode, and their instances are created on demand (default 0)",
    )
    up.add_argument(
        "--preemptor",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the preemptor, such as checkpoints=true; may be given more than once",
    )
    up.add_argument("--kubeconfig", default="", help="a real cluster instead of the simulated one")
    up.add_argument("--store", default="", help="directory of the NATS store (default: a temporary one)")
    up.add_argument("--port", type=int, default=4222, help="of NATS; 0 for a free one")
    up.add_argument("--http-port", type=int, default=-1, help="health and metrics of placement; 0 for a free port")
    up.add_argument(
        "--metrics-port", type=int, default=-1, help="Prometheus endpoint of the metrics service; 0 for a free port"
    )
    up.add_argument(
        "--page-port",
        type=int,
        default=0,
        help="of the live page, on loopback; 0 for a free one (default), -1 for none",
    )
    up.add_argument("--prices", default="", metavar="FILE", help="prices per GPU-hour, for `kerf cost`")


def _holding_back(add: Callable[..., argparse.ArgumentParser]) -> None:
    cordon = add("cordon", "cordon:cordon", "a node's GPUs, or one of them, take no new slices")
    cordon.add_argument(
        "--undo", action="store_true", help="take them again; a GPU that waited for a reset is believed to have had it"
    )
    drain = add("drain", "cordon:drain", "cordon, and evict the pods on it; disruption budgets are honoured")
    drain.add_argument(
        "--timeout",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="how long to wait until all are gone (default 300)",
    )
    for command in (cordon, drain):
        command.add_argument("target", help="a node's name or a GPU's UUID")
        command.add_argument("--reason", default="", help="why pods wait")


def _resize(add: Callable[..., argparse.ArgumentParser], pod: argparse.ArgumentParser) -> None:
    resize = add("resize", "resize", "give a running pod's slices more or less, without a restart", pod)
    resize.add_argument("--memory", default="", metavar="AMOUNT", help="the container's GPU memory, such as 12Gi")
    resize.add_argument("--compute", default="", metavar="PERCENT", help="its compute in percent of one GPU")
    resize.add_argument("--container", default="", help="which one, where several use GPUs")
    resize.add_argument("--cancel", action="store_true", help="leave the slices as they are; what waits is given up")
    resize.add_argument("--wait", action="store_true", help="until the slices have it, or cannot")
    resize.add_argument(
        "--timeout", type=float, default=300.0, metavar="SECONDS", help="how long to wait (default 300)"
    )


def _questions(add: Callable[..., argparse.ArgumentParser], pod: argparse.ArgumentParser) -> None:
    """Why, what if, when, and how to free capacity."""
    why = add("why", "why:why", "why a pod is where it is, or nowhere", pod)
    why.add_argument("--nodes", type=int, default=5, help="how many nodes to speak of")
    what_if = add("what-if", "what_if", "what would be with another pod, or in another cluster; nothing is changed")
    what_if.add_argument(
        "-f",
        "--file",
        default="",
        help="a Pod manifest in its canonical form, - for standard input: where would it go?",
    )
    what_if.add_argument("--drain", action="append", default=[], metavar="NODE", help="without this node")
    what_if.add_argument("--add-node", default="", metavar="LIKE", help="with new nodes like this one")
    what_if.add_argument("--add-gpus", default="", metavar="NODE", help="with more GPUs in this node")
    what_if.add_argument("--count", type=int, default=1, help="how many nodes or GPUs (default 1)")
    what_if.add_argument("--resize", default="", metavar="POD", help="were this pod to ask for what --limit says")
    what_if.add_argument(
        "--limit", action="append", default=[], metavar="RESOURCE=AMOUNT", help="such as kerf.dev/gpu-memory=20Gi"
    )
    what_if.add_argument("-n", "--namespace", default="default", help="of the pod to resize")
    what_if.add_argument("--nodes", type=int, default=5)
    scale = add("scale", "scale", "how many more nodes of which type would give the waiting pods a place")
    scale.add_argument("--max-nodes", type=int, default=64, help="the most of one type that are tried (default 64)")
    preempt = add("preempt", "preempt", "which pods would be preempted for a waiting pod, and at what price", pod)
    preempt.add_argument("--dry-run", action="store_true", help="preview only: preemption itself is automatic")
    add("when", "when", "when a waiting pod could start at the earliest, by the ends that are known", pod)

    advise = add("advise", "advise", "which pods should migrate to free capacity; nothing is migrated")
    advise.add_argument("pod", nargs="?", default="", help="a waiting pod: name, or namespace/name")
    advise.add_argument("-n", "--namespace", default="default")
    advise.add_argument("-f", "--file", default="", help="a Pod manifest instead, - for standard input")
    advise.add_argument("--gpus", type=int, default=0, help="instead of a pod: groups of so many idle GPUs on one node")
    advise.add_argument("--groups", type=int, default=1, help="how many more of them (default 1)")
    advise.add_argument("--most", type=int, default=0, metavar="GPU_SECONDS", help="disturb no more than this")


if __name__ == "__main__":
    main()
