"""Which nodes ask for Kerf, by the labels that users write."""

from __future__ import annotations

from collections.abc import Mapping

from shared.model import names


def asks(labels: Mapping[str, str]) -> bool:
    """Whether the labels ask for Kerf: its own, or gpushare's where Kerf's does not say otherwise."""
    return labels.get(names.LABEL_MANAGED, labels.get(names.LABEL_GPUSHARE)) == "true"
