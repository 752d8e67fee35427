"""What operators and users write as files: queues, settings, prices, manifests and simulated nodes."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from cli.output import Failure, read_pod
from services.metrics.pricing import read_prices
from services.node_agent.config import Config as NodeConfig
from shared.contracts.examples import EXAMPLES
from shared.contracts.policy import PolicyError, read_queues
from shared.service.settings import ConfigError, read_config
from tests.fuzz.parser import Parser

_SERVICES = ("admission", "metrics", "node_agent", "operator", "placement", "preemptor", "watcher")
_YAML = """\
queues:
- {name: vision, weight: 2, guaranteed: {gpus: 4, memory: 64Gi}, limit: {gpus: 8}, namespaces: [a, b]}
- name: nlp
  parent: vision
  priority: 3
default: &default {weight: 1.5, turns: allowed}
within_guarantee_from: 100
"""
_SETTINGS = """\
# comment
lifecycle: &common
  nats_url: 'nats://x:4222'
  http_port: !!int "0"
  trace_ratio: 0.5
  provision: no
  log_level: "info"
"""
_PRICES = "currency: EUR\ndefault: 1.5\nmodels: {NVIDIA-H200: 2.5, NVIDIA-H100: 2}\n"
_HOLLOW = [{"name": "a", "count": 2, "memory_mib": 1000, "mig": {"0": [{"profile": "1g.10gb", "start": 0}]}}]
_POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, resources: {limits: {a: 1}}}]}\n"


def parsers() -> tuple[Parser, ...]:
    return (
        Parser(
            name="queues",
            form="text",
            examples=(_YAML, _YAML.replace("{weight", "\n  {weight")),
            read=lambda data: read_queues(data.decode()),
            errors=(PolicyError,),
            weight=3,
        ),
        Parser(
            name="queues-tree",
            form="json",
            examples=(msgspec.json.decode(msgspec.json.encode(EXAMPLES["QueuePolicy"])),),
            read=lambda data: read_queues(data.decode(errors="replace")),
            errors=(PolicyError,),
        ),
        *(
            Parser(
                name=f"settings-{service}",
                form="text",
                examples=(_SETTINGS, _defaults(service)),
                read=_settings(service, "yaml"),
                errors=(ConfigError,),
            )
            for service in _SERVICES
        ),
        *(
            Parser(
                name=f"settings-json-{service}",
                form="json",
                examples=(msgspec.json.decode(_defaults(service)),),
                read=_settings(service, "json"),
                errors=(ConfigError,),
            )
            for service in _SERVICES
        ),
        Parser(
            name="settings-bytes",
            form="bytes",
            examples=(_SETTINGS.encode(),),
            read=_settings("watcher", "yaml"),
            errors=(ConfigError,),
        ),
        Parser(
            name="environment",
            form="text",
            examples=('["a","b"]', "3", "20"),
            read=_environment,
            errors=(ConfigError,),
        ),
        Parser(
            name="prices",
            form="text",
            examples=(_PRICES,),
            read=_with_file("prices.yaml", read_prices),
            errors=(ConfigError,),
        ),
        Parser(
            name="manifest", form="text", examples=(_POD,), read=_with_file("pod.yaml", read_pod), errors=(Failure,)
        ),
        Parser(
            name="hollow-nodes",
            form="json",
            examples=(_HOLLOW,),
            read=_with_file("nodes.json", lambda path: NodeConfig(node="n", hollow_file=path).hollow_nodes()),
            errors=(msgspec.DecodeError, UnicodeError, RecursionError, ValueError),
        ),
    )


@cache
def _config(service: str) -> type[Any]:
    module = importlib.import_module(f"services.{service}.service")
    kind: type[Any] = module.SERVICE.config_type
    return kind


@cache
def _defaults(service: str) -> str:
    """Every setting with its default, as far as it has one."""
    fields = msgspec.structs.fields(_config(service))
    values = {field.encode_name: field.default for field in fields if field.default is not msgspec.NODEFAULT}
    return msgspec.json.format(msgspec.json.encode(values), indent=1).decode()


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="kerf-fuzz-"))


def _with_file(name: str, read: Callable[[str], object]) -> Callable[[bytes], object]:
    def from_file(data: bytes) -> object:
        path = _folder() / name
        path.write_bytes(data)
        return read(str(path))

    return from_file


def _settings(service: str, ending: str) -> Callable[[bytes], object]:
    return _with_file(
        f"{service}.{ending}",
        lambda path: read_config(service, _config(service), file=Path(path), environ={}),
    )


def _environment(data: bytes) -> object:
    text = data.decode(errors="replace")
    if '"' in text:
        return read_config("admission", _config("admission"), environ={"KERF_EXCLUDED_NAMESPACES": text})
    return read_config("watcher", _config("watcher"), environ={"KERF_BATCH_MS": text})
