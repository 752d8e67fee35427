#!/usr/bin/env bash
# Builds the Kubernetes control plane that tests and benches run against, from the module versions pinned beside
# this file. Prints the directory of the binaries alone on stdout; everything else goes to stderr.
#
#   tools/build.sh                        kube-apiserver, kube-controller-manager, kube-scheduler, kubectl, etcd
#   tools/build.sh kube-apiserver etcd    only these
#
# Order: $KUBEBUILDER_ASSETS where it has the binary, the cache, else a build. The cache stands outside the tree,
# keyed by version and by the content of go.sum, so that a changed pin never finds an old binary.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
K8S_VERSION=v1.36.4
wanted=("$@")
[ ${#wanted[@]} -gt 0 ] || wanted=(etcd kube-apiserver kube-controller-manager kube-scheduler kubectl)

key=$(cat "$here"/*/go.mod "$here"/*/go.sum | sha256sum | cut -c1-12)
bin=${XDG_CACHE_HOME:-$HOME/.cache}/kerf/kube/$K8S_VERSION-$key
mkdir -p "$bin"

export CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS=-buildvcs=false
ldflags="-s -w"
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
  ldflags="$ldflags -X $package.gitVersion=$K8S_VERSION -X $package.gitMajor=1 -X $package.gitMinor=36"
done

for name in "${wanted[@]}"; do
  [ -x "$bin/$name" ] && continue
  if [ -n "${KUBEBUILDER_ASSETS:-}" ] && [ -x "$KUBEBUILDER_ASSETS/$name" ]; then
    ln -sf "$KUBEBUILDER_ASSETS/$name" "$bin/$name"
    continue
  fi
  command -v go >/dev/null || { echo "tools/build.sh: $name is not cached and there is no Go to build it with; install Go 1.26 or set KUBEBUILDER_ASSETS to a directory that has it" >&2; exit 3; }
  case $name in
    etcd) module=etcd package=go.etcd.io/etcd/server/v3 ;;
    kwok) module=kwok package=sigs.k8s.io/kwok/cmd/kwok ;;
    kube-apiserver | kube-controller-manager | kube-scheduler | kubelet | kubectl) module=k8s package=k8s.io/kubernetes/cmd/$name ;;
    *) echo "tools/build.sh: no such binary: $name" >&2; exit 2 ;;
  esac
  echo "building $name (minutes from empty caches, seconds from warm ones)" >&2
  # Built beside its final name and moved: a build that was cut off leaves nothing that looks finished.
  (cd "$here/$module" && go build -trimpath -ldflags "$ldflags" -o "$bin/.$name.$$" "$package" >&2)
  mv "$bin/.$name.$$" "$bin/$name"
done
echo "$bin"
