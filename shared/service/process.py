"""A service as a process: arguments, signals, exit codes."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

from shared.bus.port import BusError
from shared.plugins import PluginError
from shared.service.base import Service
from shared.service.lifecycle import ServiceFailed, run
from shared.service.settings import ConfigError, read_config
from shared.telemetry.logs import configure_logging

EXIT_OK, EXIT_FAILED, EXIT_CONFIG = 0, 1, 2

_COLLECT = (20_000, 20, 50)
"""Of services that keep objects of the whole cluster, few of which are in cycles. With Python's own thresholds a
collection of all of them comes each time that they have grown by a quarter, and stops everything for half a second:
with 65,000 pods nine times in one takeover. Now it needs some 20 million new objects that stay, too."""


def main(service: type[Service]) -> None:
    """Runs the service until SIGTERM or SIGINT, then drains it; a second signal ends it at once. SIGHUP reads the
    config again.

    Exit status 0: drained in order. 1: failed. 2: the settings, or an installed plug-in,
    cannot be used.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m services.{service.name.replace('-', '_')}", description=service.__doc__
    )
    parser.add_argument("--config", type=Path, help="settings, JSON or YAML; the environment (KERF_*) goes before it")
    arguments = parser.parse_args()
    try:
        config: Any
        config, lifecycle = read_config(service.name, service.config_type, file=arguments.config)
        configure_logging(lifecycle.log_level)
    except (ConfigError, ValueError) as error:
        sys.stderr.write(f"kerf {service.name}: {error}\n")
        sys.exit(EXIT_CONFIG)

    if service.knows_cluster:
        gc.set_threshold(*_COLLECT)

    async def body() -> int:
        stop, reload = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        for sign in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sign, lambda: os._exit(EXIT_FAILED) if stop.is_set() else stop.set())
        loop.add_signal_handler(signal.SIGHUP, reload.set)
        try:
            await run(service, config, stop=stop, lifecycle=lifecycle, config_file=arguments.config, reload=reload)
        except (ServiceFailed, BusError, OSError) as error:
            structlog.get_logger().error("service_failed", service=service.name, error=str(error))
            return EXIT_FAILED
        except PluginError as error:
            structlog.get_logger().error("plugin_unusable", service=service.name, error=str(error))
            return EXIT_CONFIG
        except ConfigError as error:
            structlog.get_logger().error("settings_unusable", service=service.name, error=str(error))
            return EXIT_CONFIG
        return EXIT_OK

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        status = runner.run(body())
    sys.exit(status)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed; KERF_LOOP=asyncio does without."""
    if os.environ.get("KERF_LOOP", "") == "asyncio":
        return None
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
