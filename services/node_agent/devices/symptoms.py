"""Reads the symptoms of one GPU from NVML, which `health` judges."""

from __future__ import annotations

from typing import Any

import pynvml

from services.node_agent.devices.describe import fabric
from services.node_agent.devices.health import Symptoms
from services.node_agent.nvml_calls import NO_DRIVER, optional

_UNCORRECTED, _VOLATILE, _AGGREGATE = (
    pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
    pynvml.NVML_VOLATILE_ECC,
    pynvml.NVML_AGGREGATE_ECC,
)


def symptoms(handle: Any, uuid: str) -> Symptoms:
    """The symptoms of a GPU; one that does not answer is lost. Raises pynvml.NVMLError if there is no driver."""
    try:
        rows = optional(pynvml.nvmlDeviceGetRemappedRows, handle)
        rates = optional(pynvml.nvmlDeviceGetUtilizationRates, handle)
        return Symptoms(
            uuid=uuid,
            recovery=_recovery(handle),
            remaps_rows=rows is not None,
            rows_pending=bool(rows and rows[2]),
            rows_failed=bool(rows and rows[3]),
            ecc_volatile=optional(pynvml.nvmlDeviceGetTotalEccErrors, handle, _UNCORRECTED, _VOLATILE) or 0,
            ecc_aggregate=optional(pynvml.nvmlDeviceGetTotalEccErrors, handle, _UNCORRECTED, _AGGREGATE) or 0,
            pcie_width=optional(pynvml.nvmlDeviceGetCurrPcieLinkWidth, handle) or 0,
            max_pcie_width=optional(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle) or 0,
            pcie_generation=optional(pynvml.nvmlDeviceGetCurrPcieLinkGeneration, handle) or 0,
            max_pcie_generation=optional(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle) or 0,
            busy=rates is not None and rates.gpu > 0,
            clock_reasons=optional(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle) or 0,
            fabric_down=not fabric(handle).up,
        )
    except NO_DRIVER:
        raise
    except pynvml.NVMLError as error:
        return Symptoms(uuid=uuid, lost=str(error))


def _recovery(handle: Any) -> int:
    """The driver's recovery action, or -1 if it does not report one (before r565)."""
    values = optional(pynvml.nvmlDeviceGetFieldValues, handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    return -1 if values is None or values[0].nvmlReturn != pynvml.NVML_SUCCESS else int(values[0].value.uiVal)
