"""The lifecycle that all services share: one validated config, telemetry, bus, health, leadership, orderly drain.

A service is a class with `name`, `config_type`, `start` and `drain`; `main(TheService)` is its process, `run` and
`running` are the same inside a process that has others (`kerf up`, tests).
"""

from shared.service.base import Context, Health, Service, load, load_simulator
from shared.service.leadership import Leadership
from shared.service.lifecycle import ServiceFailed, run, running
from shared.service.process import main
from shared.service.settings import ConfigError, Lifecycle, read_config

__all__ = [
    "ConfigError",
    "Context",
    "Health",
    "Leadership",
    "Lifecycle",
    "Service",
    "ServiceFailed",
    "load",
    "load_simulator",
    "main",
    "read_config",
    "run",
    "running",
]
