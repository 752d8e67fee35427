"""The API servers of other minor versions: which are pinned, and how a pin is made from Kubernetes' own go.mod."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.binaries import HERE, KUBERNETES_VERSION, MINOR_VERSIONS, NoBinaries, find_binaries, pinned_version
from tools.pin_kubernetes import go_mod

UPSTREAM = """module k8s.io/kubernetes

go 1.23.0

godebug default=go1.23

require k8s.io/api v0.0.0

replace (
\tk8s.io/api => ./staging/src/k8s.io/api
\tk8s.io/kms => ./staging/src/k8s.io/kms
)
"""


def test_staging_modules_become_published_ones_of_the_same_release() -> None:
    made = go_mod("1.32.13", UPSTREAM, {"k8s.io/kms": "v0.32.10"})
    assert "\tk8s.io/api => k8s.io/api v0.32.13\n" in made
    assert "\tk8s.io/kms => k8s.io/kms v0.32.10\n" in made
    assert "go 1.23.0" in made
    assert "godebug default=go1.23" in made


def test_a_module_that_is_not_of_kubernetes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"k8s\.io/other"):
        go_mod("1.32.13", UPSTREAM, {"k8s.io/other": "v0.32.10"})
    with pytest.raises(ValueError, match="no staging modules"):
        go_mod("1.32.13", "module example", {})


def test_every_minor_version_from_1_32_to_the_newest_is_pinned() -> None:
    main = int(KUBERNETES_VERSION.split(".")[1])
    have = sorted({main, *(int(minor.split(".")[1]) for minor in MINOR_VERSIONS)})
    assert have == list(range(32, have[-1] + 1))
    assert all(pinned_version(minor).startswith(f"v{minor}.") for minor in MINOR_VERSIONS)


def test_python_and_shell_agree_on_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty file stands for a binary that was built."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    with pytest.raises(NoBinaries, match=r"kerf/kube/v1\.32\.[0-9]+-[0-9a-f]{12}") as missing:
        find_binaries(["kube-apiserver"], kubernetes="1.32")
    (folder,) = [word for word in str(missing.value).replace(";", " ").split() if str(tmp_path) in word]
    Path(folder).mkdir(parents=True)
    binary = Path(folder) / "kube-apiserver"
    binary.write_text("")
    binary.chmod(0o755)
    command = [HERE / "build.sh", "--kubernetes", "1.32", "kube-apiserver"]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    assert Path(said.stdout.strip()) == find_binaries(["kube-apiserver"], kubernetes="1.32") == Path(folder)


def test_a_version_that_is_not_pinned_is_named() -> None:
    with pytest.raises(NoBinaries, match=r"Kubernetes 1\.12 is not pinned"):
        find_binaries(kubernetes="1.12")
