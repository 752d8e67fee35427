"""Writes `schemas/` and the users of NATS from the contracts: `python -m shared.contracts.generate`.

With `--check` it only compares.

- schemas/asyncapi.json: the whole bus as an AsyncAPI 3.1.0 document
- schemas/<Type>.json: one JSON Schema (2020-12) for each message, and for documents that users write
- schemas/examples/v1/<Type>.json: golden payloads
- k8s/nats.conf and nats-callout.conf, and below k8s/chart/files, for a chart reads nothing outside of it, the latter
  and nats-shared.conf: the users of NATS (`permissions`); nats-callout-users: the digest of those that are in none of
  them. `make manifests` puts them into the plain manifests

Generation is deterministic. A change that would break a consumer of this version (a field removed, newly required, or
of another type) is refused against the present files, unless --break says that it is intended.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import msgspec

from shared.contracts import permissions
from shared.contracts.asyncapi import document
from shared.contracts.base import encode
from shared.contracts.compatibility import breaks
from shared.contracts.examples import EXAMPLES
from shared.contracts.registry import DOCUMENTS, message_types

SCHEMAS = Path(__file__).resolve().parents[2] / "schemas"
MANIFESTS = SCHEMAS.parent / "k8s"
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema_of(kind: type) -> dict[str, Any]:
    """The JSON Schema of one message, with what it refers to under $defs."""
    (reference,), definitions = msgspec.json.schema_components((kind,), ref_template="#/$defs/{name}")
    own = definitions.pop(kind.__name__) if reference == {"$ref": f"#/$defs/{kind.__name__}"} else reference
    schema: dict[str, Any] = {"$schema": DIALECT, "$id": f"https://kerf.dev/schemas/v1/{kind.__name__}.json", **own}
    if definitions:
        schema["$defs"] = {name: definitions[name] for name in sorted(definitions)}
    return schema


def files() -> dict[str, bytes]:
    """Every generated file by its path under schemas/."""
    made = {"asyncapi.json": _pretty(document())}
    for kind in (*message_types(), *DOCUMENTS):
        made[f"{kind.__name__}.json"] = _pretty(schema_of(kind))
        made[f"examples/v1/{kind.__name__}.json"] = (
            msgspec.json.format(encode(EXAMPLES[kind.__name__]), indent=2) + b"\n"
        )
    return made


def _pretty(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def configurations(folder: Path = MANIFESTS) -> dict[Path, str]:
    """What the files with the users of NATS should contain."""
    return {
        folder / "nats.conf": permissions.render(),
        folder / "nats-callout.conf": permissions.render_callout(),
        folder / "chart" / "files" / "nats-shared.conf": permissions.render_shared(),
        folder / "chart" / "files" / "nats-callout.conf": permissions.render_callout(),
        folder / "chart" / "files" / "nats-callout-users": permissions.callout_users_digest() + "\n",
    }


def check_configurations(folder: Path = MANIFESTS) -> list[str]:
    """What differs between the files with the users of NATS and their definition, in sentences."""
    made = configurations(folder)
    return [
        f"{path.name} differs from permissions.py"
        for path, text in made.items()
        if not path.exists() or path.read_text() != text
    ]


def check(folder: Path = SCHEMAS) -> list[str]:
    """What differs between the folder and what would be generated, in sentences."""
    made = files()
    have = {str(path.relative_to(folder)) for path in folder.rglob("*.json")}
    problems = [f"{name} is missing" for name in sorted(made.keys() - have)]
    problems += [f"{name} belongs to no message any more" for name in sorted(have - made.keys())]
    problems += [
        f"{name} differs from the contracts"
        for name in sorted(made.keys() & have)
        if (folder / name).read_bytes() != made[name]
    ]
    return problems


def incompatible(folder: Path = SCHEMAS) -> list[str]:
    """What the contracts of now would break for consumers of the schemas in the folder."""
    now = {kind.__name__: schema_of(kind) for kind in (*message_types(), *DOCUMENTS)}
    problems = []
    for path in sorted(folder.glob("*.json")):
        if path.name == "asyncapi.json":
            continue
        if path.stem not in now:
            problems.append(f"{path.stem}: the message is gone")
            continue
        problems += breaks(msgspec.json.decode(path.read_bytes()), now[path.stem])
    return problems


def write(folder: Path = SCHEMAS) -> None:
    made = files()
    for path in folder.rglob("*.json"):
        if str(path.relative_to(folder)) not in made:
            path.unlink()
    for name, content in made.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m shared.contracts.generate", description="Writes schemas/ from the contracts."
    )
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 where something differs")
    parser.add_argument(
        "--break", dest="breaking", action="store_true", help="write even what breaks consumers of this version"
    )
    parser.add_argument("--folder", type=Path, default=SCHEMAS)
    options = parser.parse_args(arguments)
    problems = incompatible(options.folder)
    if options.check:
        problems += check(options.folder) + check_configurations()
    elif not problems or options.breaking:
        write(options.folder)
        for path, text in configurations().items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return 0
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    if problems:
        hint = (
            "run `python -m shared.contracts.generate`"
            if options.check
            else "add to the message instead, or use --break if nothing reads it yet"
        )
        sys.stderr.write(f"{len(problems)} problem(s); {hint}\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
