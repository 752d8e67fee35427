"""Settings: a file (JSON or YAML), then the environment, validated against the service's type before anything starts.

In the file the service's own fields are at the top, those of the lifecycle under `lifecycle`. In the environment field
`poll_s` of service placement is KERF_PLACEMENT_POLL_S or KERF_POLL_S, lifecycle's `nats_url` is KERF_NATS_URL. Values
of lists and objects are JSON there. A variable that Kubernetes sets for a Service of that name is not read.

A setting that was renamed is read by its former name for one version: `FORMER_NAMES` of the struct has the former names
by the present ones.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from shared.formats import UNREADABLE, decode_yaml

Count = Annotated[int, msgspec.Meta(ge=1)]
CountOrNone = Annotated[int, msgspec.Meta(ge=0)]
"""0: none."""
Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
Patience = Annotated[float, msgspec.Meta(ge=0)]
"""Seconds that may be none."""
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
"""0: a free one."""
PortOrNone = Annotated[int, msgspec.Meta(ge=-1, le=65535)]
"""-1: none."""
Ratio = Annotated[float, msgspec.Meta(ge=0, le=1)]


class ConfigError(ValueError):
    """Settings that cannot be used. The text names the field, what was wanted and what was given."""


class Lifecycle(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that every service has."""

    nats_url: str = "nats://127.0.0.1:4222"
    nats_credentials: str = ""
    """Path of a NATS .creds file."""
    nats_token_file: str = ""
    """Path of a token that identifies a client to NATS (a node agent's ServiceAccount). Read at each connection."""
    nats_ca: str = ""
    """Path of the CA of the NATS servers, for TLS."""
    nats_inbox_prefix: str = "_INBOX"
    nats_wait_s: Patience = 30.0
    """How long to wait for a server at start before giving up."""
    nats_replicas: Count = 1
    provision: bool = True
    """Whether a service that owns streams may make them; false where a bootstrap job does."""
    http_host: str = "127.0.0.1"
    """`*`: all addresses, of IPv4 and IPv6."""
    http_port: PortOrNone = -1
    """Health and metrics: a port, 0 for a free one, -1 for none."""
    log_level: str = ""
    trace_ratio: Ratio | None = None
    drain_timeout_s: Patience = 20.0


T = TypeVar("T")

_REPR = reprlib.Repr()
"""Bounded: in YAML a few aliases of lists of aliases are gigabytes as text."""
_REPR.maxlevel, _REPR.maxlist, _REPR.maxdict, _REPR.maxstring, _REPR.maxother = 3, 10, 10, 200, 200


def read_config(
    service: str, kind: type[T], *, file: Path | None = None, environ: Mapping[str, str] | None = None
) -> tuple[T, Lifecycle]:
    """The service's settings and the lifecycle's. Raises ConfigError."""
    env = os.environ if environ is None else environ
    content = {} if file is None else _read_file(file)
    where = "the environment" if file is None else f"{file} and the environment"
    lifecycle = content.pop("lifecycle", {})
    if not isinstance(lifecycle, dict):
        raise ConfigError(f"{where}: lifecycle must be an object, not {type(lifecycle).__name__}")
    own = _overlay(content, kind, env, (f"KERF_{service.upper()}_", "KERF_"))
    common = _overlay(lifecycle, Lifecycle, env, (f"KERF_{service.upper()}_", "KERF_"))
    return _convert(own, kind, where, ""), _convert(common, Lifecycle, where, "lifecycle.")


def _read_file(file: Path) -> dict[str, Any]:
    try:
        data = file.read_bytes()
        # YAML is a superset of JSON, but its reader is slow to import and loose about types; .json files go without it.
        content = msgspec.json.decode(data) if file.suffix == ".json" else decode_yaml(data, Any)
    except OSError as error:
        raise ConfigError(f"config file {file}: {error.strerror}") from error
    except UNREADABLE as error:
        raise ConfigError(f"config file {file} cannot be read: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"config file {file} holds a {type(content).__name__}; it must be an object of settings")
    return content


def _overlay(content: dict[str, Any], kind: type, env: Mapping[str, str], prefixes: tuple[str, ...]) -> dict[str, Any]:
    """The file's settings with the environment's over them, all by their present names."""
    merged = dict(content)
    former: Mapping[str, str] = getattr(kind, "FORMER_NAMES", {})
    for field in msgspec.structs.fields(kind):
        name = field.encode_name
        names = (name, former[name]) if name in former else (name,)
        if name in former and former[name] in merged:
            merged.setdefault(name, merged.pop(former[name]))
        variables = (prefix + known.upper().replace("-", "_") for known in names for prefix in prefixes)
        found = next((v for v in variables if v in env and not _is_service_link(v, env[v])), None)
        if found is not None:
            merged[name] = _from_text(env[found], found)
    return merged


def _is_service_link(name: str, value: str) -> bool:
    """Whether Kubernetes set this variable, for a Service whose name makes it look like a setting.

    A Service kerf-admission in the pod's namespace is KERF_ADMISSION_PORT=tcp://10.96.0.7:443 in every container.
    """
    return name.endswith("_PORT") and value.startswith(("tcp://", "udp://", "sctp://"))


def _from_text(text: str, name: str) -> Any:
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        return msgspec.json.decode(text)
    except UNREADABLE as error:
        raise ConfigError(f"{name} looks like JSON and is none: {error}") from error


def _convert(content: dict[str, Any], kind: type[T], where: str, prefix: str) -> T:
    fields: tuple[msgspec.structs.FieldInfo, ...] = msgspec.structs.fields(kind)  # type: ignore[arg-type]
    known = {field.encode_name for field in fields}
    unknown = sorted(str(key) for key in content if key not in known)
    if unknown:
        raise ConfigError(
            f"{where}: there is no setting {prefix}{unknown[0]}; known are {', '.join(sorted(known)) or 'none'}"
        )
    try:
        return msgspec.convert(content, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {_explain(str(error), content, prefix)}") from error


def _explain(text: str, content: dict[str, Any], prefix: str) -> str:
    """msgspec says what was expected and where ("Expected `int`, got `str` - at `$.port`"); this adds the given
    value."""
    problem, _, path = text.partition(" - at `$.")
    if not path:
        return text
    path = path.rstrip("`")
    given: Any = content
    for step in path.replace("[", ".").replace("]", "").split("."):
        if isinstance(given, Mapping):
            given = given.get(step, given)
        elif isinstance(given, list) and step.isdecimal():
            given = given[int(step)]
    return f"setting {prefix}{path}: {problem}; given was {_REPR.repr(given)}"
