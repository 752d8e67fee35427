"""What the agent reads of this machine's GPUs, field by field beside `nvidia-smi`: `python -m bench.nvml [--json]`.

For a machine with a GPU, and root for MIG and for other users' processes. Inventory, health and usage are compared with
`nvidia-smi -q -x`, topology with `nvidia-smi topo -m`. What moves by itself (use, clocks) may differ by a little. Ends
with 1 where anything else differs. With --smi FILE and --topo FILE their output is taken from files.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import msgspec

from services.node_agent.devices.describe import cpu_list
from services.node_agent.devices.health import HOT, POWER_BRAKE, Symptoms
from services.node_agent.devices.nvml import NvmlDevices
from services.node_agent.devices.usage import GpuProcesses
from shared.model.gpu import Inventory

Fields = dict[str, Any]
"""By "uuid field", or by "field" for the whole node."""
MOVING = {"used_mib": 512, "sm_percent": 100}
"""How far apart two readings of what moves may be: they are taken one after the other."""
RECOVERY = ("None", "Reset", "Reboot", "Drain P2P", "Drain and Reset")
LEVELS = {"internal": "PIX", "single": "PIX", "multiple": "PXB", "hostbridge": "PHB", "node": "NODE", "system": "SYS"}
"""NVML's levels in the words of `nvidia-smi topo`."""


_UNDERLINED = re.compile(r"\x1b\[[0-9;]*m")


class Row(msgspec.Struct, frozen=True):
    field: str
    agent: Any
    smi: Any
    equal: bool


def of_agent(inventory: Inventory, symptoms: tuple[Symptoms, ...], used: tuple[GpuProcesses, ...]) -> Fields:
    found: Fields = {"driver": inventory.driver_version, "cuda": inventory.cuda_version, "gpus": len(inventory.gpus)}
    for gpu in inventory.gpus:
        found |= {
            f"{gpu.uuid} model": gpu.model,
            f"{gpu.uuid} memory_mib": gpu.memory_mib,
            f"{gpu.uuid} pci": gpu.pci_bus_id.lower(),
            f"{gpu.uuid} minor": gpu.minor,
            f"{gpu.uuid} mig": gpu.mig_enabled,
            f"{gpu.uuid} mig_instances": len(gpu.mig_instances),
            f"{gpu.uuid} c2c": gpu.c2c,
        }
    for sign in symptoms:
        found |= {
            f"{sign.uuid} ecc_volatile": sign.ecc_volatile,
            f"{sign.uuid} ecc_aggregate": sign.ecc_aggregate,
            f"{sign.uuid} rows_pending": sign.rows_pending,
            f"{sign.uuid} rows_failed": sign.rows_failed,
            f"{sign.uuid} pcie_width": sign.pcie_width,
            f"{sign.uuid} pcie_width_most": sign.max_pcie_width,
            f"{sign.uuid} pcie_generation_most": sign.max_pcie_generation,
            f"{sign.uuid} hot": bool(sign.clock_reasons & HOT),
            f"{sign.uuid} power_brake": bool(sign.clock_reasons & POWER_BRAKE),
            f"{sign.uuid} fabric_down": sign.fabric_down,
        }
        if sign.recovery >= 0:
            found[f"{sign.uuid} recovery"] = (
                RECOVERY[sign.recovery] if sign.recovery < len(RECOVERY) else str(sign.recovery)
            )
    for gpu_use in used:
        found |= {
            f"{gpu_use.uuid} used_mib": gpu_use.used_mib,
            f"{gpu_use.uuid} processes": sorted((p.pid, p.mib) for p in gpu_use.processes),
        }
        if gpu_use.sm_milli is not None:
            found[f"{gpu_use.uuid} sm_percent"] = gpu_use.sm_milli // 10
    return found


def of_smi(text: str) -> Fields:
    """Of `nvidia-smi -q -x`. What a device does not know stands there as N/A, and is what the agent takes it for."""
    log = ET.fromstring(text)
    gpus = log.findall("gpu")
    found: Fields = {"driver": _text(log, "driver_version"), "cuda": _text(log, "cuda_version"), "gpus": len(gpus)}
    for gpu in gpus:
        uuid, link = _text(gpu, "uuid"), "pci/pci_gpu_link_info"
        recovery = _text(gpu, "gpu_recovery_action")
        fields: Fields = {
            "model": _text(gpu, "product_name").replace(" ", "-"),
            "memory_mib": _number(gpu, "fb_memory_usage/total"),
            "pci": _text(gpu, "pci/pci_bus_id").lower(),
            "minor": _number(gpu, "minor_number", -1),
            "mig": _text(gpu, "mig_mode/current_mig") == "Enabled",
            "mig_instances": len(gpu.findall("mig_devices/mig_device")),
            "c2c": _text(gpu, "c2c_mode") == "Enabled",
            "ecc_volatile": _uncorrectable(gpu, "volatile"),
            "ecc_aggregate": _uncorrectable(gpu, "aggregate"),
            "rows_pending": _text(gpu, "remapped_rows/remapped_row_pending") == "Yes",
            "rows_failed": _text(gpu, "remapped_rows/remapped_row_failure") == "Yes",
            "pcie_width": _number(gpu, f"{link}/link_widths/current_link_width"),
            "pcie_width_most": _number(gpu, f"{link}/link_widths/max_link_width"),
            "pcie_generation_most": _number(gpu, f"{link}/pcie_gen/max_link_gen"),
            "hot": _active(gpu, "hw_thermal_slowdown"),
            "power_brake": _active(gpu, "hw_power_brake_slowdown"),
            "fabric_down": _text(gpu, "fabric/state") not in ("", "N/A", "Completed"),
            # nvidia-smi tells the driver's own apart; NVML's first form of the question, which every driver knows, does
            # not.
            "used_mib": _number(gpu, "fb_memory_usage/used") + _number(gpu, "fb_memory_usage/reserved"),
            "processes": sorted(
                (_number(p, "pid"), _number(p, "used_memory"))
                for p in gpu.findall("processes/process_info")
                if "C" in _text(p, "type")
            ),
        }
        if recovery not in ("", "N/A"):
            fields["recovery"] = recovery
        if _text(gpu, "utilization/gpu_util") not in ("", "N/A"):
            fields["sm_percent"] = _number(gpu, "utilization/gpu_util")
        found |= {f"{uuid} {name}": value for name, value in fields.items()}
    return found


def links_of_agent(inventory: Inventory) -> Fields:
    found: Fields = {
        f"GPU{link.a} GPU{link.b}": f"NV{link.nvlinks}" if link.nvlinks else LEVELS[link.pcie]
        for link in inventory.links
    }
    for gpu in inventory.gpus:
        found[f"GPU{gpu.index} cpus"], found[f"GPU{gpu.index} numa"] = gpu.cpus, gpu.numa_node
    return found


def links_of_smi(text: str) -> Fields:
    """Of `nvidia-smi topo -m`: a table with tabs between its columns and an underlined header."""
    lines = [[cell.strip() for cell in line.split("\t")] for line in _UNDERLINED.sub("", text).splitlines()]
    header = next(line for line in lines if "GPU0" in line[1:])
    found: Fields = {}
    for line in lines:
        if not line[0].startswith("GPU"):
            continue
        cells = dict(zip(header[1:], line[1:], strict=False))
        for other, word in cells.items():
            if other.startswith("GPU") and other[3:].isdecimal() and int(line[0][3:]) < int(other[3:]):
                found[f"{line[0]} {other}"] = word
        found[f"{line[0]} cpus"] = _cpus(cells.get("CPU Affinity", ""))
        numa = cells.get("NUMA Affinity", "")
        found[f"{line[0]} numa"] = int(numa) if numa.isdecimal() else -1
    return found


def compare(agent: Fields, smi: Fields) -> list[Row]:
    """Every field of either; one that only one of them has differs."""
    rows = []
    for field in sorted(agent.keys() | smi.keys()):
        a, b = agent.get(field), smi.get(field)
        most = MOVING.get(field.rpartition(" ")[2])
        near = most is not None and a is not None and b is not None and abs(a - b) <= most
        rows.append(Row(field, a, b, a == b or near))
    return rows


def _text(node: ET.Element, path: str) -> str:
    return (node.findtext(path) or "").strip()


def _number(node: ET.Element, path: str, otherwise: int = 0) -> int:
    """The number before its unit: "16x", "81559 MiB"."""
    digits = _text(node, path).split(" ")[0].rstrip("x")
    return int(digits) if digits.lstrip("-").isdecimal() else otherwise


def _uncorrectable(gpu: ET.Element, counter: str) -> int:
    names = (
        "sram_uncorrectable",
        "sram_uncorrectable_parity",
        "sram_uncorrectable_secded",
        "dram_uncorrectable",
        "double_bit/total",
    )
    return sum(_number(gpu, f"ecc_errors/{counter}/{name}") for name in names)


def _active(gpu: ET.Element, reason: str) -> bool:
    return "Active" in (
        _text(gpu, f"clocks_{kind}_reasons/clocks_{kind}_reason_{reason}") for kind in ("event", "throttle")
    )


def _cpus(text: str) -> str:
    """In the kernel's form, which sorts the runs."""
    runs = [part.partition("-") for part in text.split(",") if part and part != "N/A"]
    return cpu_list([cpu for first, _, last in runs for cpu in range(int(first), int(last or first) + 1)])


async def _read() -> tuple[Inventory, tuple[Symptoms, ...], tuple[GpuProcesses, ...]]:
    devices = NvmlDevices(timeout_s=60.0)
    try:
        inventory = await devices.inventory("here", "now")
        return inventory, await devices.symptoms(), await devices.processes(int(time.time() * 1_000_000))
    finally:
        await devices.close()


def _said(file: str, *command: str) -> str:
    if file:
        return Path(file).read_text()
    try:
        return subprocess.run(["nvidia-smi", *command], check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(
            f"nvidia-smi {' '.join(command)}: {error}. This is for a machine with a GPU and its driver"
        ) from error


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--smi", default="", metavar="FILE", help="stored output of nvidia-smi -q -x")
    parser.add_argument("--topo", default="", metavar="FILE", help="stored output of nvidia-smi topo -m")
    args = parser.parse_args()
    smi, topo = _said(args.smi, "-q", "-x"), _said(args.topo, "topo", "-m")
    inventory, symptoms, used = asyncio.run(_read())
    rows = compare(of_agent(inventory, symptoms, used), of_smi(smi)) + compare(
        links_of_agent(inventory), links_of_smi(topo)
    )
    differ = [row for row in rows if not row.equal]
    if args.json:
        models = sorted({gpu.model for gpu in inventory.gpus})
        print(
            json.dumps(
                {
                    "models": models,
                    "driver": inventory.driver_version,
                    "fields": len(rows),
                    "differ": msgspec.to_builtins(differ),
                }
            )
        )
    else:
        for row in rows:
            print(
                f"{'  ' if row.equal else '! '}{row.field}: {row.agent}"
                + ("" if row.equal else f", nvidia-smi says {row.smi}")
            )
        print(f"{len(rows) - len(differ)} of {len(rows)} fields are equal")
    sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
