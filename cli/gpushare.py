"""`kubectl inspect gpushare [-d] [NODE]`: Kerf's allocations as the inspector of Alibaba's gpushare prints them.

For scripts and habits that read that output: GiB as whole numbers, rounded down, a 0/0 for each GPU that a node does
not have, and columns aligned with two blanks. What Kerf knows beyond that is in `kerf inspect`.
"""

from __future__ import annotations

import argparse

from cli.ask import ask, connected
from cli.output import out, run_command
from shared.contracts import queries
from shared.contracts.queries import InspectAnswer, InspectNode, InspectQuery


def main() -> None:
    """The program `kubectl-inspect-gpushare`, which kubectl finds by its name."""
    parser = argparse.ArgumentParser(prog="kubectl inspect gpushare", description="GPU memory by node, in GiB.")
    parser.add_argument("node", nargs="?", default="")
    parser.add_argument("-d", action="store_true", dest="details", help="with pods")
    parser.add_argument("--nats", default="", metavar="URL", help="the NATS server (default: KERF_NATS_URL)")
    run_command(run(parser.parse_args()))


async def run(args: argparse.Namespace) -> None:
    async with connected(args.nats) as bus:
        answer = await ask(bus, queries.INSPECT.subject, InspectQuery(node=args.node), InspectAnswer)
    nodes = [node for node in answer.nodes if node.gpus]
    out.print(details(nodes) if args.details else summary(nodes), markup=False, end="")


def summary(nodes: list[InspectNode]) -> str:
    """One line a node."""
    width = max((len(node.gpus) for node in nodes), default=0)
    header = ["NAME", "IPADDRESS", *(f"GPU{i}(Allocated/Total)" for i in range(width)), "GPU Memory(GiB)"]
    rows = []
    for node in nodes:
        cells = [f"{_gib(gpu.allocated_memory_mib)}/{_gib(gpu.memory_mib)}" for gpu in node.gpus]
        cells += ["0/0"] * (width - len(cells))
        rows.append([node.node, node.address or "unknown", *cells, f"{_allocated(node)}/{_total(node)}"])
    lines = _aligned([header, *rows])
    ruler = "-" * max(len(line) for line in lines)
    return "\n".join([*lines, ruler, "Allocated/Total GPU Memory In Cluster:", _cluster(nodes)]) + "\n"


def details(nodes: list[InspectNode]) -> str:
    """The pods of each node, with the memory of each on each GPU."""
    lines: list[str] = []
    for node in nodes:
        lines += ["", *_aligned([["NAME:", node.node], ["IPADDRESS:", node.address or "unknown"]]), ""]
        header = ["NAME", "NAMESPACE", *(f"GPU{gpu.index}(Allocated)" for gpu in node.gpus)]
        rows = [
            [pod.name, pod.namespace, *(str(_gib(pod.memory_mib)) if at == i else "0" for at in range(len(node.gpus)))]
            for i, gpu in enumerate(node.gpus)
            for pod in gpu.pods
            if pod.state != "reserved"
        ]
        table = _aligned([header, *rows])
        percent = 100 * _allocated(node) // max(1, _total(node))
        totals = _aligned([["Allocated :", f"{_allocated(node)} ({percent}%)"], ["Total :", str(_total(node))]])
        lines += [*table, *totals, "-" * max(len(line) for line in table)]
    return "\n".join([*lines, "", "", f"Allocated/Total GPU Memory In Cluster:  {_cluster(nodes)}"]) + "\n"


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _cluster(nodes: list[InspectNode]) -> str:
    allocated, total = sum(map(_allocated, nodes)), sum(map(_total, nodes))
    return f"{allocated}/{total} ({100 * allocated // max(1, total)}%)"


def _allocated(node: InspectNode) -> int:
    return sum(_gib(gpu.allocated_memory_mib) for gpu in node.gpus)


def _total(node: InspectNode) -> int:
    return sum(_gib(gpu.memory_mib) for gpu in node.gpus)


def _gib(mib: int) -> int:
    return mib // 1024


if __name__ == "__main__":
    main()
