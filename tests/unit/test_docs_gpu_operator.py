"""docs/examples/gpu-operator/values.yaml switches each operand of NVIDIA's GPU operator as docs/operators.md says.

Operands and their names are those of deployments/gpu-operator/values.yaml in NVIDIA/gpu-operator at d7413be97273;
gpuCluster.deployCR is read by templates/gpucluster.yaml at 4651c8215db7. Why they conflict:
controllers/object_controls.go (the validator skips its plug-in step where devicePlugin is off; the
MPS daemon goes with devicePlugin),
controllers/state_manager.go (which operands run only for sandboxed workloads, and who sets mig.config to all-disabled).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
VALUES: dict[str, Any] = yaml.safe_load((ROOT / "docs/examples/gpu-operator/values.yaml").read_text())
DOCS = (ROOT / "docs/operators.md").read_text()
SECTION = DOCS[DOCS.index("### GPU operator\n") :].partition("\n### ")[0]
ON_ITS_OWN = (
    "nfd",
    "driver",
    "toolkit",
    "devicePlugin",
    "dcgm",
    "dcgmExporter",
    "gfd",
    "migManager",
    "nodeStatusExporter",
    "gds",
    "gdrcopy",
    "sandboxWorkloads",
    "gpuCluster.deployCR",
)
WITH_SANDBOXES = ("sandboxDevicePlugin", "vfioManager", "vgpuManager", "vgpuDeviceManager", "kataManager", "ccManager")
OFFERS_OR_TAKES_GPUS = ("devicePlugin", "migManager", "sandboxWorkloads", "gpuCluster.deployCR")


def table() -> dict[str, str]:
    """on, off or either, by the operand."""
    rows = re.findall(r"^\| (`[^|]+`) \| (on|off|either) \|", SECTION, re.MULTILINE)
    return {operand: state for names, state in rows for operand in re.findall(r"`([^`]+)`", names)}


def switch(operand: str) -> bool | None:
    """What the file says; None where it does not name the operand."""
    value: Any = VALUES
    for key in operand.split(".") if "." in operand else (operand, "enabled"):
        value = value.get(key) if isinstance(value, dict) else None
    assert value is None or isinstance(value, bool), f"{operand}: {value!r} is no switch"
    return value


def test_the_table_has_every_operand_of_the_operator() -> None:
    assert sorted(table()) == sorted(ON_ITS_OWN)
    for operand in WITH_SANDBOXES:
        assert f"`{operand}`" in SECTION, f"{operand} is not said to depend on sandboxWorkloads"
        assert operand not in VALUES


@pytest.mark.parametrize("operand", ON_ITS_OWN)
def test_each_operand_is_switched_as_the_table_says(operand: str) -> None:
    assert switch(operand) is {"on": True, "off": False, "either": None}[table()[operand]]


def test_what_offers_gpus_or_takes_them_is_off_and_nothing_else() -> None:
    assert sorted(name for name, state in table().items() if state == "off") == sorted(OFFERS_OR_TAKES_GPUS)


def test_the_file_has_no_operand_that_the_table_lacks() -> None:
    assert {name.split(".")[0] for name in table()} >= set(VALUES)


def test_containers_get_no_gpus_by_their_images_environment() -> None:
    """Strings: in YAML `false` would be a boolean, which the ClusterPolicy's env refuses."""
    assert VALUES["toolkit"]["env"] == [
        {"name": "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED", "value": "false"}
    ]
