"""Pins the API server of a minor version of Kubernetes: python -m tools.pin_kubernetes 1.37.2

Writes tools/k8s/<minor>/go.mod and go.sum; tools/build.sh --kubernetes <minor> builds it. Kubernetes' own go.mod
replaces its staging modules by folders of its repository; here the published modules of the same release take their
place. Go version and GODEBUG are Kubernetes' own, or the server would behave otherwise than the released one.

A release of which a staging module is not published takes that module of another release of the same minor version:
--module k8s.io/kube-scheduler=v0.32.10
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

K8S = Path(__file__).resolve().parent / "k8s"
_ENVIRONMENT = {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod"}


def go_mod(version: str, upstream: str, others: Mapping[str, str]) -> str:
    """The text of go.mod. `upstream`: Kubernetes' own; `others`: releases of single staging modules. Raises ValueError
    on what is no go.mod of Kubernetes."""
    go = re.search(r"^go (\S+)$", upstream, re.MULTILINE)
    staging = re.findall(r"^\s*(k8s\.io/\S+) => \./staging/", upstream, re.MULTILINE)
    if go is None or not staging:
        raise ValueError(f"the go.mod of k8s.io/kubernetes v{version} names no Go version or no staging modules")
    if unknown := others.keys() - set(staging):
        raise ValueError(f"no staging modules of k8s.io/kubernetes v{version}: {', '.join(sorted(unknown))}")
    release = f"v0.{version.partition('.')[2]}"
    lines = [
        f"module kerf.dev/tools/k8s/{minor_of(version)}",
        f"go {go[1]}",
        *(f"godebug {setting}" for setting in re.findall(r"^godebug (\S+)$", upstream, re.MULTILINE)),
        f"require k8s.io/kubernetes v{version}",
        "replace (\n" + "".join(f"\t{name} => {name} {others.get(name, release)}\n" for name in staging) + ")",
        "tool k8s.io/kubernetes/cmd/kube-apiserver",
    ]
    return "\n\n".join(lines) + "\n"


def minor_of(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _download(version: str) -> str:
    """Kubernetes' own go.mod. Raises subprocess.CalledProcessError."""
    command = ["go", "mod", "download", "-json", f"k8s.io/kubernetes@v{version}"]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | _ENVIRONMENT, cwd=K8S
    )
    return Path(json.loads(done.stdout)["GoMod"]).read_text()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.pin_kubernetes", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("version", help="such as 1.37.2")
    parser.add_argument("--module", action="append", default=[], metavar="NAME=VERSION")
    args = parser.parse_args()
    others = dict(entry.split("=", 1) for entry in args.module)
    folder = K8S / minor_of(args.version)
    folder.mkdir(exist_ok=True)
    (folder / "go.mod").write_text(go_mod(args.version, _download(args.version), others))
    subprocess.run(["go", "mod", "tidy"], check=True, cwd=folder, env=os.environ | {"GOTOOLCHAIN": "local"})
    sys.stdout.write(f"{folder}\n")


if __name__ == "__main__":
    main()
