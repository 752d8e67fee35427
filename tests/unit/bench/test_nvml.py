"""The comparison with nvidia-smi, on output in its documented form (nvsmi_device_v12.dtd). It needs no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.nvml import compare, links_of_agent, links_of_smi, of_agent, of_smi
from services.node_agent.devices.health import HOT, Symptoms
from services.node_agent.devices.usage import GpuProcesses, Process
from shared.model.gpu import Gpu, Inventory, Link

SMI = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <driver_version>580.95.05</driver_version><cuda_version>13.0</cuda_version><attached_gpus>1</attached_gpus>
  <gpu id="00000000:18:00.0">
    <product_name>NVIDIA H100 80GB HBM3</product_name>
    <mig_mode><current_mig>Disabled</current_mig><pending_mig>Disabled</pending_mig></mig_mode>
    <mig_devices>None</mig_devices>
    <uuid>GPU-a</uuid><minor_number>3</minor_number><c2c_mode>Disabled</c2c_mode>
    <gpu_recovery_action>None</gpu_recovery_action>
    <pci>
      <pci_bus_id>00000000:18:00.0</pci_bus_id>
      <pci_gpu_link_info>
        <pcie_gen><max_link_gen>5</max_link_gen><current_link_gen>1</current_link_gen></pcie_gen>
        <link_widths><max_link_width>16x</max_link_width><current_link_width>16x</current_link_width></link_widths>
      </pci_gpu_link_info>
    </pci>
    <clocks_event_reasons>
      <clocks_event_reason_hw_thermal_slowdown>Active</clocks_event_reason_hw_thermal_slowdown>
      <clocks_event_reason_hw_power_brake_slowdown>Not Active</clocks_event_reason_hw_power_brake_slowdown>
    </clocks_event_reasons>
    <fb_memory_usage>
      <total>81559 MiB</total><reserved>551 MiB</reserved><used>2049 MiB</used><free>78960 MiB</free>
    </fb_memory_usage>
    <utilization><gpu_util>37 %</gpu_util></utilization>
    <ecc_errors>
      <volatile><sram_uncorrectable_parity>0</sram_uncorrectable_parity><sram_uncorrectable_secded>1</sram_uncorrectable_secded><dram_uncorrectable>0</dram_uncorrectable></volatile>
      <aggregate><sram_uncorrectable_parity>2</sram_uncorrectable_parity><sram_uncorrectable_secded>1</sram_uncorrectable_secded><dram_uncorrectable>4</dram_uncorrectable></aggregate>
    </ecc_errors>
    <remapped_rows><remapped_row_pending>Yes</remapped_row_pending><remapped_row_failure>No</remapped_row_failure></remapped_rows>
    <fabric><state>Completed</state><status>Success</status></fabric>
    <processes>
      <process_info><pid>4711</pid><type>C</type><used_memory>2048 MiB</used_memory></process_info>
      <process_info><pid>99</pid><type>G</type><used_memory>1 MiB</used_memory></process_info>
    </processes>
  </gpu>
</nvidia_smi_log>
"""
GPU = Gpu(
    uuid="GPU-a",
    index=0,
    model="NVIDIA-H100-80GB-HBM3",
    memory_mib=81559,
    pci_bus_id="00000000:18:00.0",
    minor=3,
    numa_node=0,
    cpus="0-3,8-11",
)
INVENTORY = Inventory(node="n", boot_id="b", gpus=(GPU,), driver_version="580.95.05", cuda_version="13.0")
SIGNS = Symptoms(
    uuid="GPU-a",
    recovery=0,
    rows_pending=True,
    remaps_rows=True,
    ecc_volatile=1,
    ecc_aggregate=7,
    pcie_width=16,
    max_pcie_width=16,
    pcie_generation=1,
    max_pcie_generation=5,
    clock_reasons=HOT,
)
USED = GpuProcesses(uuid="GPU-a", used_mib=2600, sm_milli=400, processes=(Process(pid=4711, mib=2048),))
TOPO = (
    "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tNV18\tPIX\t0-3,8-11\t0\t\tN/A\n"
    "GPU1\tNV18\t X \tSYS\t4-7,12-15\t1\t\tN/A\n"
    "NIC0\tPIX\tSYS\t X \t\t\t\t\n"
    "\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n"
)


def test_equal_readings_are_equal_field_by_field() -> None:
    rows = compare(of_agent(INVENTORY, (SIGNS,), (USED,)), of_smi(SMI))
    assert [row for row in rows if not row.equal] == []
    assert len(rows) == 24


@pytest.mark.parametrize(
    ("written", "other", "field"),
    [
        ("<minor_number>3<", "<minor_number>0<", "GPU-a minor"),
        ("<gpu_recovery_action>None<", "<gpu_recovery_action>Reset<", "GPU-a recovery"),
        ("<current_mig>Disabled<", "<current_mig>Enabled<", "GPU-a mig"),
        ("<dram_uncorrectable>0<", "<dram_uncorrectable>5<", "GPU-a ecc_volatile"),
        ("<remapped_row_failure>No<", "<remapped_row_failure>Yes<", "GPU-a rows_failed"),
        ("<current_link_width>16x<", "<current_link_width>8x<", "GPU-a pcie_width"),
        ("<used_memory>2048 MiB<", "<used_memory>2049 MiB<", "GPU-a processes"),
        ("<used>2049 MiB<", "<used>9000 MiB<", "GPU-a used_mib"),
        ("<state>Completed<", "<state>In Progress<", "GPU-a fabric_down"),
        ("hw_thermal_slowdown>Active<", "hw_thermal_slowdown>Not Active<", "GPU-a hot"),
        ("580.95.05", "580.1", "driver"),
    ],
)
def test_each_difference_is_named(written: str, other: str, field: str) -> None:
    assert written in SMI
    rows = compare(of_agent(INVENTORY, (SIGNS,), (USED,)), of_smi(SMI.replace(written, other)))
    assert [row.field for row in rows if not row.equal] == [field]


def test_a_field_that_one_of_them_lacks_differs() -> None:
    assert [(row.field, row.smi) for row in compare({"a": 1, "b": 2}, {"a": 1}) if not row.equal] == [("b", None)]


def test_topology_is_compared_too() -> None:
    other = Gpu(uuid="GPU-b", index=1, model="X", memory_mib=1, numa_node=1, cpus="4-7,12-15")
    inventory = Inventory(node="n", boot_id="b", gpus=(GPU, other), links=(Link(a=0, b=1, nvlinks=18, pcie="system"),))
    assert links_of_agent(inventory) == links_of_smi(TOPO) == {
        "GPU0 GPU1": "NV18", "GPU0 cpus": "0-3,8-11", "GPU0 numa": 0, "GPU1 cpus": "4-7,12-15", "GPU1 numa": 1,
    }  # fmt: skip
    assert links_of_smi(TOPO.replace("NV18", "PXB"))["GPU0 GPU1"] == "PXB"


RECORDED = Path(__file__).resolve().parents[2] / "data" / "nvidia_smi"


def test_what_nvidia_smi_prints_on_a_real_gpu_is_read() -> None:
    found = of_smi((RECORDED / "h200.xml").read_text())
    uuid = "GPU-00000000-0000-0000-0000-0000000000a1"
    assert (found["driver"], found["cuda"], found["gpus"]) == ("580.159.04", "13.0", 1)
    expected = {"model": "NVIDIA-H200", "memory_mib": 143_771, "minor": 0, "mig": False, "pcie_width": 16}
    assert {name: found[f"{uuid} {name}"] for name in expected} == expected
    assert (found[f"{uuid} recovery"], found[f"{uuid} fabric_down"], found[f"{uuid} processes"]) == ("None", False, [])


def test_the_underlined_header_of_its_topology_is_read() -> None:
    """On the first GPU that it met the comparison ended at the escape sequences around the header."""
    text = (RECORDED / "h200.topo").read_text()
    assert "\x1b[4m" in text
    assert links_of_smi(text) == {"GPU0 cpus": "0-15", "GPU0 numa": 0}
