#!/usr/bin/env bash
# Builds the Kubernetes control plane that tests and benches run against, and what a node needs, from the module
# versions pinned beside this file. Prints the directory of the binaries alone on stdout; all else goes to stderr.
#
#   tools/build.sh                        kube-apiserver, kube-controller-manager, kube-scheduler, kubectl, etcd
#   tools/build.sh node                   all that tests/node runs: a control plane, kubelet, containerd, runc, workload
#   tools/build.sh kube-apiserver etcd    only these
#   tools/build.sh --kubernetes 1.32      kube-apiserver of another minor version, and the same etcd
#
# Order: $KUBEBUILDER_ASSETS where it has the binary, the cache, else a build. The cache stands outside the tree,
# keyed by version and by the content of go.sum and our own sources, so that a changed pin never finds an old binary.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
K8S_VERSION=v1.36.4
die() { # status, text
  echo "tools/build.sh: $2" >&2
  exit "$1"
}
k8s=k8s
if [ "${1:-}" = --kubernetes ]; then
  minor=${2:?"--kubernetes wants a minor version, such as 1.32"}
  shift 2
  if [ "$minor" != "$(echo "$K8S_VERSION" | sed -E 's/^v([0-9]+\.[0-9]+).*/\1/')" ]; then
    # A module of its own, pinned by tools/pin_kubernetes.py. Its content is the key, so the main pin keeps its own.
    k8s=k8s/$minor
    [ -f "$here/$k8s/go.mod" ] || die 2 "Kubernetes $minor is not pinned in tools/k8s"
    K8S_VERSION=$(grep -oE 'k8s\.io/kubernetes v[0-9.]+' "$here/$k8s/go.mod" | head -1 | cut -d' ' -f2)
  fi
  [ $# -gt 0 ] || set -- etcd kube-apiserver
fi
wanted=("$@")
[ ${#wanted[@]} -gt 0 ] || wanted=(etcd kube-apiserver kube-controller-manager kube-scheduler kubectl)
[ "${wanted[*]}" != node ] || wanted=(
  etcd kube-apiserver kube-controller-manager kubelet containerd containerd-shim-runc-v2 ctr runc workload
)

key=$(cat "$here"/*/go.mod "$here"/*/go.sum "$here"/*/*.go | sha256sum | cut -c1-12)
[ "$k8s" = k8s ] || key=$(cat "$here/$k8s/go.mod" "$here/$k8s/go.sum" | sha256sum | cut -c1-12)
bin=${XDG_CACHE_HOME:-$HOME/.cache}/kerf/kube/$K8S_VERSION-$key
mkdir -p "$bin"

export GOTOOLCHAIN=local GOFLAGS=-buildvcs=false
ldflags="-s -w"
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
  ldflags="$ldflags -X $package.gitVersion=$K8S_VERSION -X $package.gitMajor=1"
  ldflags="$ldflags -X $package.gitMinor=$(echo "$K8S_VERSION" | cut -d. -f2)"
done

for name in "${wanted[@]}"; do
  [ -x "$bin/$name" ] && continue
  if [ "$k8s" != k8s ] && [ "$name" = etcd ]; then
    ln -sf "$("$here/build.sh" etcd)/etcd" "$bin/etcd" # the same for every version
    continue
  fi
  if [ "$k8s" = k8s ] && [ -n "${KUBEBUILDER_ASSETS:-}" ] && [ -x "$KUBEBUILDER_ASSETS/$name" ]; then
    ln -sf "$KUBEBUILDER_ASSETS/$name" "$bin/$name"
    continue
  fi
  command -v go >/dev/null || die 3 "$name is not cached and there is no Go to build it with; install Go 1.26 or set \
KUBEBUILDER_ASSETS to a directory that has it"
  cgo=0 tags=
  case $name in
    containerd | containerd-shim-runc-v2 | ctr)
      module=containerd package=github.com/containerd/containerd/v2/cmd/$name tags=no_btrfs ;;
    runc)
      # The kubelet wants a seccomp profile around every pod's first process, and runc's seccomp is libseccomp's.
      pkg-config --exists libseccomp 2>/dev/null || die 3 "runc is built with libseccomp; install libseccomp-dev and \
pkg-config"
      module=containerd package=github.com/opencontainers/runc cgo=1 tags=seccomp ;;
    workload) module=workload package=. ;;
    etcd) module=etcd package=go.etcd.io/etcd/server/v3 ;;
    kwok) module=kwok package=sigs.k8s.io/kwok/cmd/kwok ;;
    kube-apiserver | kube-controller-manager | kube-scheduler | kubelet | kubectl)
      module=$k8s package=k8s.io/kubernetes/cmd/$name ;;
    *) die 2 "no such binary: $name" ;;
  esac
  echo "building $name (minutes from empty caches, seconds from warm ones)" >&2
  # Built beside its final name and moved: a build that was cut off leaves nothing that looks finished.
  (cd "$here/$module" && CGO_ENABLED=$cgo \
    go build -trimpath -tags "$tags" -ldflags "$ldflags" -o "$bin/.$name.$$" "$package" >&2)
  mv "$bin/.$name.$$" "$bin/$name"
done
echo "$bin"
