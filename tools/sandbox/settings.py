"""What kubelet, containerd and the network of pods are told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PAUSE = "localhost/pause:1"

CNI = """#!/bin/sh
# Pods get an address that leads nowhere: they need no network, and the machine keeps no interface of theirs.
case $CNI_COMMAND in
  ADD) echo '{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"'"$CNI_NETNS"'"}],' \\
            '"ips":[{"address":"192.0.2.10/24","interface":0}]}' ;;
  VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}' ;;
esac
"""
CNI_LIST = {"cniVersion": "1.0.0", "name": "nowhere", "plugins": [{"type": "nowhere"}]}


def containerd(state: Path) -> str:
    return f"""
version = 3
root = "{state}/own/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.erofs",
  "io.containerd.snapshotter.v1.zfs",
]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{PAUSE}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["{state}/cni/bin"]
  conf_dir = "{state}/cni"
  use_internal_loopback = true
"""


def kubelet(pki: Path, port: int) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "127.0.0.1",
        "port": port,
        "healthzPort": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "clusterDNS": ["192.0.2.1"],
        "resolvConf": "",
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        # It would write to the machine's own tables.
        "makeIPTablesUtilChains": False,
        "oomScoreAdj": 0,
        "nodeStatusUpdateFrequency": "1s",
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "50Mi"},
        "maxPods": 110,
        # Its defaults keep thirty pods waiting for each other's API calls.
        "kubeAPIQPS": 200,
        "kubeAPIBurst": 400,
        "registerWithTaints": [{"key": "kerf.dev/managed", "effect": "NoSchedule"}],
    }


def write(state: Path, pki: Path, port: int, *, cni: str = CNI, enrolled: bool = True, domain: str = "") -> None:
    """The files. `cni` is the network's plug-in; `enrolled` gives the node Kerf's taint; `domain` is the cluster's."""
    configuration = kubelet(pki, port)
    if domain:
        configuration["clusterDomain"] = domain
    if not enrolled:
        del configuration["registerWithTaints"]
    (state / "containerd.toml").write_text(containerd(state))
    (state / "kubelet.json").write_text(json.dumps(configuration, indent=1))
    plugins = state / "cni"
    (plugins / "bin").mkdir(parents=True)
    (plugins / "10-nowhere.conflist").write_text(json.dumps(CNI_LIST))
    (plugins / "bin" / "nowhere").write_text(cni)
    (plugins / "bin" / "nowhere").chmod(0o755)
