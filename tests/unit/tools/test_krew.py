"""The krew plugin: its manifest by krew's rules, its archive, and its script in a real shell."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import re
import stat
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import yaml

from shared.version import version
from tools.krew import FOLDER, archive, manifest

BASE = f"https://kerf.dev/releases/v{version()}"


def document() -> dict[str, Any]:
    made: dict[str, Any] = yaml.safe_load((FOLDER / "kerf.yaml").read_text())
    return made


def test_the_manifest_of_the_repository_is_the_one_that_is_made() -> None:
    assert (FOLDER / "kerf.yaml").read_text() == manifest(BASE), "run python -m tools.krew"


def test_the_manifest_keeps_krews_rules() -> None:
    """https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest, as `krew validate` checks them."""
    plugin = document()
    assert (plugin["apiVersion"], plugin["kind"]) == ("krew.googlecontainertools.github.com/v1alpha2", "Plugin")
    assert re.fullmatch(r"[\w-]+", plugin["metadata"]["name"])
    spec = plugin["spec"]
    assert set(spec) == {
        "version",
        "homepage",
        "shortDescription",
        "description",
        "caveats",
        "platforms",
    }
    assert re.fullmatch(r"v\d+\.\d+\.\d+(-[\w.]+)?", spec["version"])
    assert "\n" not in spec["shortDescription"]
    for platform in spec["platforms"]:
        assert set(platform) == {"selector", "uri", "sha256", "files", "bin"}
        assert platform["uri"].startswith("https://")
        assert platform["uri"].endswith((".zip", ".tar.gz"))
        assert re.fullmatch(r"[0-9a-f]{64}", platform["sha256"])
        assert platform["bin"] in {file["from"] for file in platform["files"]}


def test_the_archive_is_the_same_on_every_machine_and_holds_what_the_manifest_names() -> None:
    (platform,) = document()["spec"]["platforms"]
    assert hashlib.sha256(archive()).hexdigest() == platform["sha256"]
    with zipfile.ZipFile(io.BytesIO(archive())) as file:
        assert file.namelist() == [entry["from"] for entry in platform["files"]]
        mode = file.getinfo("kubectl-kerf").external_attr >> 16
        assert stat.S_IMODE(mode) == 0o755


def test_the_script_runs_kerf_in_the_cluster_and_keeps_the_password_out_of_command_lines(tmp_path: Path) -> None:
    """With a `kubectl` that runs what it is to run in a pod here, and writes down its own arguments."""
    secret = base64.b64encode(b"s3cret word").decode()
    programs = {
        "kubectl": f"""#!/bin/sh
echo "$@" >> {tmp_path}/log
case "$*" in
  *"get secret"*) printf %s {secret} ;;
  *exec*) while [ "$1" != -- ]; do shift; done; shift; exec "$@" ;;
esac
""",
        "kerf": '#!/bin/sh\necho "$KERF_NATS_URL $KERF_NATS_INBOX_PREFIX"; for word; do echo "<$word>"; done; cat\n',
    }
    for name, text in programs.items():
        path = tmp_path / name
        path.write_text(text)
        path.chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "KERF_CONTEXT": "prod"}
    script = [str(FOLDER / "kubectl-kerf"), "why", "team/a b"]
    done = subprocess.run(script, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "nats://reader:s3cret word@kerf-nats:4222 _INBOX\n<why>\n<team/a b>\n"
    log = (tmp_path / "log").read_text()
    assert "--context prod -n kerf-system" in log
    assert "s3cret" not in log

    # A file is one of this machine, also where it is standard input.
    (tmp_path / "a pod.yaml").write_text("kind: Pod\n")
    for name, given in ((f"{tmp_path}/a pod.yaml", ""), ("-", "kind: Pod\n")):
        script = [str(FOLDER / "kubectl-kerf"), "what-if", "-f", name, "--json"]
        done = subprocess.run(script, env=env, input=given, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[1:] == ["<what-if>", "<-f>", "<->", "<--json>", "kind: Pod"]
        for word in (f"--file={name}", f"-f{name}", f"-f={name}"):
            script = [str(FOLDER / "kubectl-kerf"), "what-if", word, "--json"]
            done = subprocess.run(script, env=env, input=given, capture_output=True, text=True, check=True)
            assert done.stdout.splitlines()[1:] == ["<what-if>", "<--file=->", "<--json>", "kind: Pod"]
    script = [str(FOLDER / "kubectl-kerf"), "what-if", "-f", "nowhere"]
    done = subprocess.run(script, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "kubectl kerf: nowhere cannot be read\n")
