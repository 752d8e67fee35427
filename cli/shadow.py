"""`kerf shadow`: what Kerf would have done in a cluster that another scheduler runs. It changes nothing there."""

from __future__ import annotations

import argparse
import importlib


async def run(args: argparse.Namespace) -> None:
    """By name, as the services are started: shadow mode drives their cores, and nothing here imports them."""
    await importlib.import_module("shadow.command").run(args)


async def plan(args: argparse.Namespace) -> None:
    """`kerf plan`, of the same package."""
    await importlib.import_module("shadow.command").plan(args)
