"""Removes what Kerf has made beside its manifests: `python -m services.operator uninstall`."""

from __future__ import annotations


def main(arguments: list[str]) -> None:
    raise NotImplementedError(arguments)
