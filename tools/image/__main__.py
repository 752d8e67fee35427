"""Builds compose/Dockerfile without an engine: python -m tools.image. Prints one JSON object."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from tools.image.archive import write
from tools.image.build import Builder, BuildError
from tools.image.dockerfile import DockerfileError, configuration, read

ROOT = Path(__file__).resolve().parents[2]
NAME = "docker.io/library/kerf:0.2.0"


def image(to: Path, name: str = NAME, context: Path = ROOT) -> dict[str, object]:
    """Builds the image into the archive `to`. Raises BuildError and DockerfileError."""
    begun = time.monotonic()
    stages = read((context / "compose/Dockerfile").read_text())
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kerf/image"
    builder = Builder(context, (context / "compose/Dockerfile.dockerignore").read_text(), cache)
    root = builder.build(stages)
    to.parent.mkdir(parents=True, exist_ok=True)
    size = write(builder, root, configuration(stages), name, to)
    return {
        "image": name,
        "archive": str(to),
        "mib": round(size / 2**20, 1),
        "seconds": round(time.monotonic() - begun, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.image", description=__doc__)
    parser.add_argument("--to", type=Path, default=ROOT / "build/kerf-image.tar")
    parser.add_argument("--name", default=NAME, help="registry/repository:tag that the archive carries")
    given = parser.parse_args()
    try:
        print(json.dumps(image(given.to, given.name)))  # noqa: T201
    except (BuildError, DockerfileError) as error:
        sys.stderr.write(f"tools/image: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
