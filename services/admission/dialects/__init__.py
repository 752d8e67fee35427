"""The foreign dialects that admission reads. One line each."""

from __future__ import annotations

from services.admission.dialects.base import Dialect, Setting, Translation
from services.admission.dialects.gpushare import Gpushare
from services.admission.dialects.nvidia import Nvidia

DIALECTS: tuple[Dialect, ...] = (
    Gpushare(),
    Nvidia(),
)

__all__ = ["DIALECTS", "Dialect", "Setting", "Translation"]
