"""The krew plugin `kerf`: its archive, and the manifest that names the archive's checksum.

    python -m tools.krew [--out dist] [--base https://kerf.dev/releases/v0.2.0]

The archive is stored and not compressed, with fixed times: the same files give the same bytes on any machine, so the
manifest in the repository, `k8s/krew/kerf.yaml`, can have its checksum. A test compares them.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import zipfile
from pathlib import Path

import yaml

from shared.version import version

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "k8s" / "krew"
FILES = ((FOLDER / "kubectl-kerf", 0o755), (ROOT / "LICENSE", 0o644))
ARCHIVE = "kubectl-kerf.zip"


def archive() -> bytes:
    """The plugin's files as a zip file."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as file:
        for path, mode in FILES:
            info = zipfile.ZipInfo(path.name, (1980, 1, 1, 0, 0, 0))
            info.external_attr = (0o100000 | mode) << 16
            info.create_system = 3
            file.writestr(info, path.read_bytes())
    return made.getvalue()


def manifest(base: str) -> str:
    """krew's Plugin object. The program is a shell script, so one archive serves every platform that has a shell."""
    plugin = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "kerf"},
        "spec": {
            "version": f"v{version()}",
            "homepage": "https://kerf.dev",
            "shortDescription": "See what each pod has of a GPU, why, and since when",
            "description": (
                "Asks Kerf, which shares GPUs between pods: kubectl kerf inspect, why POD, what-if, when, advise,\n"
                "top, queues, events and doctor. It runs kerf in the cluster, so nothing else is installed here.\n"
            ),
            "caveats": (
                "You need rights to read Secret kerf-nats and to exec into deploy/kerf-metrics in kerf-system.\n"
            ),
            "platforms": [
                {
                    "selector": {"matchExpressions": [{"key": "os", "operator": "In", "values": ["linux", "darwin"]}]},
                    "uri": f"{base}/{ARCHIVE}",
                    "sha256": hashlib.sha256(archive()).hexdigest(),
                    "files": [{"from": path.name, "to": "."} for path, _ in FILES],
                    "bin": "kubectl-kerf",
                }
            ],
        },
    }
    return "# Made by `python -m tools.krew`.\n" + yaml.safe_dump(plugin, sort_keys=False, width=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where to write the archive (default: not at all)")
    parser.add_argument("--base", default=f"https://kerf.dev/releases/v{version()}", help="where releases are")
    args = parser.parse_args()
    (FOLDER / "kerf.yaml").write_text(manifest(args.base))
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / ARCHIVE).write_bytes(archive())


if __name__ == "__main__":
    main()
