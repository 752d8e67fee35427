"""Fixtures around a real control plane. A conftest imports the ones that its folder needs."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.binaries import program
from tools.control_plane import ControlPlane, NoBinaries, find_binaries

_NUMBERS = itertools.count(1)


def binaries_or_skip(*names: str, kubernetes: str = "") -> Path:
    """The folder of the binaries. Without them it skips; with REQUIRE_KUBE=1 it tries to build them and fails if it
    cannot. `kubernetes`: of another minor version."""
    required = os.environ.get("REQUIRE_KUBE") == "1"
    try:
        return find_binaries(names or ("etcd", "kube-apiserver"), build=required, kubernetes=kubernetes)
    except NoBinaries as error:
        if required:
            raise
        pytest.skip(f"no real API server for this test: {error}")


def program_or_skip(name: str) -> Path:
    """A program of tools/program.sh, built now if need be. Without it it skips; with REQUIRE_KUBE=1 it fails."""
    try:
        return program(name)
    except NoBinaries as error:
        if os.environ.get("REQUIRE_KUBE") == "1":
            raise
        pytest.skip(f"no {name} for this test: {error}")


@pytest.fixture(scope="package")
def control_plane() -> Iterator[ControlPlane]:
    """etcd and API server, shared by the folder whose conftest imports this, and stopped after its last test: an idle
    API server takes CPU from other tests. A test that kills it starts one of its own (`own_control_plane`)."""
    binaries = binaries_or_skip()
    with tempfile.TemporaryDirectory(prefix="kerf-kube-") as state:
        plane = ControlPlane(Path(state), binaries=binaries).start()
        try:
            yield plane
        finally:
            plane.stop()


@pytest.fixture
def own_control_plane() -> Iterator[ControlPlane]:
    """One that this test may kill, restart and compact."""
    binaries = binaries_or_skip()
    with tempfile.TemporaryDirectory(prefix="kerf-kube-") as state:
        plane = ControlPlane(Path(state), binaries=binaries).start()
        try:
            yield plane
        finally:
            plane.stop()


@pytest.fixture
def namespace(control_plane: ControlPlane) -> str:
    """A fresh namespace. It is never deleted, because no namespace controller runs that would finish that."""
    name = f"test-{os.getpid()}-{next(_NUMBERS)}"
    status, answer = control_plane.request(
        "POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    )
    assert status == 201, answer
    return name
