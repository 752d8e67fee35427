"""Writes the plain manifests under k8s/ from the chart: python -m tools.manifests [--check].

One file a template, by its name, with the chart's default values and the Namespace. Of helm's hooks what removes an
installation is in a folder of its own, which `kubectl apply --filename k8s/` leaves out.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

from tools.binaries import KUBERNETES_VERSION, program

K8S = Path(__file__).resolve().parents[1] / "k8s"
_SOURCE = "# Source: kerf/templates/"
DEFAULTS = (
    "--set=namespace.create=true",
    "--set=admission.canonical=policy",
    "--set=dynamicResourceAllocation.enabled=true",
)
"""What `auto` stands for on the main version of Kubernetes: helm asks no cluster here."""
_UNINSTALL = "90-uninstall.yaml"
_HOOK = "helm.sh/hook"
_HEAD = "# Rendered from chart/templates/{name} with the chart's default values: make manifests\n"


def template(*options: str) -> str:
    """The chart's manifests as one text. Raises subprocess.CalledProcessError with helm's words on stderr."""
    command = [str(program("helm")), "template", "kerf", str(K8S / "chart"), "--namespace=kerf-system"]
    return subprocess.run(
        [*command, f"--kube-version={KUBERNETES_VERSION}", *options], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def render() -> dict[str, str]:
    """The text of every plain manifest by its path below k8s/."""
    files = _files(template("--no-hooks", *DEFAULTS))
    hooks = _files(template(f"--show-only=templates/{_UNINSTALL}", *DEFAULTS))[_UNINSTALL]
    files["uninstall/kerf-uninstall.yaml"] = re.sub(rf"^ *annotations: .*{_HOOK}.*\n", "", hooks, flags=re.MULTILINE)
    return files


def _files(rendered: str) -> dict[str, str]:
    """The text of each template that is not empty, by its name."""
    files: dict[str, list[str]] = {}
    for document in rendered.split("\n---\n"):
        source, _, text = document.removeprefix("---\n").partition("\n")
        lines = [line.rstrip() for line in text.splitlines()]
        if any(line and not line.startswith("#") for line in lines):
            files.setdefault(source.removeprefix(_SOURCE), []).append("\n".join(lines).strip() + "\n")
    return {name: _HEAD.format(name=name) + "---\n".join(documents) for name, documents in sorted(files.items())}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.manifests", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare")
    made = render()
    paths = (*K8S.glob("*.yaml"), *K8S.glob("uninstall/*.yaml"))
    there = {str(path.relative_to(K8S)): path.read_text() for path in paths}
    different = sorted(name for name in made.keys() | there.keys() if made.get(name) != there.get(name))
    if parser.parse_args().check:
        for name in different:
            sys.stderr.write(f"k8s/{name} differs from the chart; run: make manifests\n")
        return 1 if different else 0
    for name in different:
        if name in made:
            (K8S / name).parent.mkdir(exist_ok=True)
            (K8S / name).write_text(made[name])
        else:
            (K8S / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
