"""Writes a file system as an image archive: one layer, its configuration and the manifest."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import shlex
import tarfile
import tempfile
from pathlib import Path

from tools.image.build import Builder, Root

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def write(builder: Builder, root: Root, configuration: dict[str, object], name: str, to: Path) -> int:
    """Writes the archive as `ctr image import` and `docker load` read it. Returns the bytes of its layer."""
    with tempfile.TemporaryDirectory(prefix="kerf-image-", dir=to.parent) as folder:
        layer = Path(folder) / "layer.tar"
        builder.mounted(root, f"tar -C $ROOT --numeric-owner --sort=name -cf {shlex.quote(str(layer))} .")
        digest = _digest(layer)
        config = json.dumps(
            {
                "architecture": _ARCHITECTURES[platform.machine()],
                "os": "linux",
                "config": configuration,
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            }
        ).encode()
        file = f"{hashlib.sha256(config).hexdigest()}.json"
        manifest = json.dumps([{"Config": file, "RepoTags": [name], "Layers": [f"{digest}/layer.tar"]}]).encode()
        beside = Path(folder) / "image.tar"
        with tarfile.open(beside, "w") as archive:
            for path, content in ((file, config), ("manifest.json", manifest)):
                entry = tarfile.TarInfo(path)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
            archive.add(layer, arcname=f"{digest}/layer.tar")
        beside.replace(to)
        return layer.stat().st_size


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
