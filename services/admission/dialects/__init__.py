"""The foreign dialects that admission reads. One line each."""

from __future__ import annotations

from services.admission.dialects.base import Dialect, Setting, Translation
from services.admission.dialects.gpushare import Gpushare
from services.admission.dialects.nvidia import Nvidia
from services.admission.dialects.nvidia_mig import NvidiaMig

DIALECTS: tuple[Dialect, ...] = (
    Gpushare(),
    Nvidia(),
    NvidiaMig(),
)

__all__ = ["DIALECTS", "Dialect", "Setting", "Translation"]
