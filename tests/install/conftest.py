"""One cluster for the tests of this folder, which run in their order: installed, used, upgraded, uninstalled."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from tests.install.cluster import ARCHIVE, InstallCluster, install_cluster
from tools.sandbox import why_not


@pytest.fixture(scope="session")
def cluster() -> Iterator[InstallCluster]:
    reason = why_not_here()
    if reason:
        pytest.skip(f"THE INSTALLATION IS NOT TESTED on this machine: {reason}")
    with install_cluster() as made:
        yield made


def why_not_here() -> str:
    if os.geteuid() != 0:
        return "a kubelet needs root"
    if [name for _, name in socket.if_nameindex()] != ["lo"]:
        return "it needs a network namespace of its own; run: make test-install"
    if not ARCHIVE.exists():
        return f"there is no image in {ARCHIVE}; run: make test-install"
    return why_not(default_route=False)
