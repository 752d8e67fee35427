#!/usr/bin/env bash
# Builds a program that tests, benches and the manifests need, from the module version pinned under programs/ or from
# our own module under native/, and prints its path alone on stdout: tools/program.sh helm | promtool | nats-server | lws
#
#   tools/program.sh --cached NAME    prints its path where it is built already, and builds nothing (status 3)
#   tools/program.sh --source NAME    prints the folder of its module's source: its manifests and examples
#
# The cache stands outside the tree, keyed by the content of the module's own files. Controllers of batch systems that
# agree on their dependencies share one module (programs/neighbours), so that these are compiled once.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
verb=
case ${1:-} in --cached | --source)
  verb=$1
  shift
  ;;
esac
name=${1:-}
folder=$here/programs/$name package=
case $name in
  nats-server) folder=$here/../native/nats_server ;;
  lws) folder=$here/programs/neighbours package=sigs.k8s.io/lws/cmd ;;
  jobset) folder=$here/programs/neighbours package=sigs.k8s.io/jobset ;;
  trainer) folder=$here/programs/neighbours package=github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager ;;
  mpi-operator) folder=$here/programs/neighbours package=github.com/kubeflow/mpi-operator/cmd/mpi-operator ;;
  volcano-controllers) folder=$here/programs/volcano package=volcano.sh/volcano/cmd/controller-manager ;;
  volcano-admission) folder=$here/programs/volcano package=volcano.sh/volcano/cmd/webhook-manager ;;
  volcano-scheduler) folder=$here/programs/volcano package=volcano.sh/volcano/cmd/scheduler ;;
esac
die() { # status, text
  echo "tools/program.sh: $2" >&2
  exit "$1"
}
[ -n "$name" ] && [ -f "$folder/go.mod" ] || die 2 "name one of: helm promtool nats-server lws jobset trainer mpi-operator \
kuberay volcano-controllers volcano-admission volcano-scheduler kueue karpenter"
export GOTOOLCHAIN=local GOFLAGS=-buildvcs=false CGO_ENABLED=0
[ -n "$package" ] || package=$(sed -n 's/^tool //p' "$folder/go.mod")

if [ "$verb" = --source ]; then
  command -v go >/dev/null || die 3 "there is no Go to fetch the source of $name with; install Go 1.26"
  # The module is the longest beginning of the package's path that go.mod requires.
  module=${package:-$(sed -n 's/^require \([^ (]*\) .*/\1/p' "$folder/go.mod")}
  until grep -qE "^(require|[[:space:]])[[:space:]]*$module v" "$folder/go.mod"; do
    [ "$module" != "${module%/*}" ] || die 2 "go.mod of $name requires no module of $package"
    module=${module%/*}
  done
  (cd "$folder" && go mod download -json "$module") | sed -n 's/^\t"Dir": "\(.*\)",\{0,1\}$/\1/p'
  exit
fi

key=$(cat "$folder"/go.* $(find "$folder" -name '*.go' | sort) | sha256sum | cut -c1-12)
program=${XDG_CACHE_HOME:-$HOME/.cache}/kerf/programs/$name-$key/$name
if [ ! -x "$program" ]; then
  [ "$verb" != --cached ] || die 3 "$name is not built; tools/program.sh $name builds it"
  command -v go >/dev/null || die 3 "$name is not cached and there is no Go to build it with; install Go 1.26"
  echo "building $name (minutes from empty caches, seconds from warm ones)" >&2
  mkdir -p "$(dirname "$program")"
  # Built beside its final name and moved: a build that was cut off leaves nothing that looks finished.
  (cd "$folder" && go build -trimpath -ldflags "-s -w" -o "$program.$$" "${package:-.}" >&2)
  mv "$program.$$" "$program"
fi
echo "$program"
