"""Container images of one static program, as the archive that `ctr image import` reads."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def archive(program: Path, images: Mapping[str, Sequence[str]], to: Path) -> None:
    """Writes the archive: `images` by name, each with the arguments that it starts the program with."""
    layer = _tar({"workload": program.read_bytes()}, mode=0o755)
    digest = hashlib.sha256(layer).hexdigest()
    files, manifest = {f"{digest}/layer.tar": layer}, []
    for name, arguments in images.items():
        config = json.dumps(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {"Env": ["PATH=/"], "Entrypoint": ["/workload"], "Cmd": list(arguments)},
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            }
        ).encode()
        file = f"{hashlib.sha256(config).hexdigest()}.json"
        files[file] = config
        manifest.append({"Config": file, "RepoTags": [name], "Layers": [f"{digest}/layer.tar"]})
    to.write_bytes(_tar({**files, "manifest.json": json.dumps(manifest).encode()}))


def _tar(files: Mapping[str, bytes], mode: int = 0o644) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()
