#!/usr/bin/env bash
# Builds a program that tests, benches and the manifests need, from the module version pinned under programs/ or from
# our own module under native/, and prints its path alone on stdout: tools/program.sh helm | promtool | nats-server
#
# The cache stands outside the tree, keyed by the content of the module's own files.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
name=${1:-}
folder=$here/programs/$name
[ "$name" != nats-server ] || folder=$here/../native/nats_server
die() { # status, text
  echo "tools/program.sh: $2" >&2
  exit "$1"
}
[ -n "$name" ] && [ -f "$folder/go.mod" ] || die 2 "name one of: $(ls "$here/programs" | xargs) nats-server"
key=$(cat "$folder"/go.* $(find "$folder" -name '*.go' | sort) | sha256sum | cut -c1-12)
program=${XDG_CACHE_HOME:-$HOME/.cache}/kerf/programs/$name-$key/$name
if [ ! -x "$program" ]; then
  command -v go >/dev/null || die 3 "$name is not cached and there is no Go to build it with; install Go 1.26"
  echo "building $name (minutes from empty caches, seconds from warm ones)" >&2
  mkdir -p "$(dirname "$program")"
  package=$(sed -n 's/^tool //p' "$folder/go.mod")
  # Built beside its final name and moved: a build that was cut off leaves nothing that looks finished.
  export GOTOOLCHAIN=local GOFLAGS=-buildvcs=false CGO_ENABLED=0
  (cd "$folder" && go build -trimpath -ldflags "-s -w" -o "$program.$$" "${package:-.}" >&2)
  mv "$program.$$" "$program"
fi
echo "$program"
