#!/usr/bin/env bash
# Follows a container file without a container engine: see `scripts/container/in-chroot.sh --help`.
set -euo pipefail

usage() {
  cat <<'HELP'
usage: scripts/container/in-chroot.sh FILE CONTEXT [ARGUMENT ...]

Follows the container file FILE step by step in a chroot, with files from the folder CONTEXT, and runs its entry point with the
given arguments in place of its CMD. It knows FROM debian:SUITE-slim, RUN, COPY, ENV, WORKDIR, ENTRYPOINT and CMD. It needs root and
debootstrap, and keeps Debian's base systems in ~/.cache/kiln-container. $DEBIAN_MIRROR names a mirror; by default it is the one that
this machine uses.
HELP
}
fail() { echo "in-chroot: $*" >&2; exit 1; }

case "${1:-}" in --help | -h) usage; exit 0 ;; esac
[ $# -ge 2 ] || { usage >&2; exit 2; }
file=$1 context=$2
shift 2
[ -r "$file" ] || fail "there is no container file $file"
[ "$(id -u)" = 0 ] || fail "found user $(id -un), and chroot needs root"
command -v debootstrap >/dev/null || fail "debootstrap is not installed (Debian: apt-get install debootstrap)"

mirror() {
  local lists=(/etc/apt/sources.list /etc/apt/sources.list.d/debian.sources)
  local found
  found=$(cat "${lists[@]}" 2>/dev/null | sed -nE 's#^(deb|URIs:) +(\[[^]]*\] +)?(http[^ ]*/debian)/?( .*)?$#\3#p' | head -n 1)
  echo "${found:-http://deb.debian.org/debian}"
}

root=$(mktemp -d)
trap 'umount "$root/proc" "$root/dev" 2>/dev/null || true; rm -rf --one-file-system "$root"' EXIT
environment=(PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root)
folder=/ entry=() default=()
inside() { chroot "$root" env -i "${environment[@]}" /bin/sh -c "cd '$folder' && $1" </dev/null; }

from() { # IMAGE
  local suite
  suite=$(sed -nE 's/^debian:([a-z]+)-slim$/\1/p' <<<"$1")
  [ -n "$suite" ] || fail "found FROM $1, and only debian:SUITE-slim can be made here"
  local base="$HOME/.cache/kiln-container/$suite"
  if [ ! -e "$base/complete" ]; then
    rm -rf "$base" && mkdir -p "$base"
    debootstrap --variant=minbase "$suite" "$base/root" "${DEBIAN_MIRROR:-$(mirror)}" >"$base/log" 2>&1 || fail "debootstrap of $suite failed: $(tail -n 1 "$base/log")"
    touch "$base/complete"
  fi
  cp -a "$base/root/." "$root"
  cp /etc/resolv.conf "$root/etc/"
  mount -t proc proc "$root/proc" && mount --bind /dev "$root/dev"
}

# A list in JSON, one element per line.
words() { python3 -c 'import json, sys; print(*json.loads(sys.argv[1]), sep="\n")' "$1"; }

while read -r instruction rest; do
  case "$instruction" in
    '' | '#'*) continue ;;
  esac
  echo "--- $instruction $rest"
  case "$instruction" in
    FROM) from "$rest" ;;
    RUN) inside "$rest" >"$root/run.log" 2>&1 || { tail -n 20 "$root/run.log" >&2; fail "failed: RUN $rest"; } ;;
    COPY)
      read -ra parts <<<"$rest"
      mkdir -p "$root${parts[-1]}"
      (cd "$context" && cp -r ${parts[@]::${#parts[@]}-1} "$root${parts[-1]}") || fail "$context lacks what COPY wants: $rest"
      ;;
    ENV) environment+=("$rest") ;;
    WORKDIR) folder=$rest && mkdir -p "$root$folder" ;;
    ENTRYPOINT) mapfile -t entry < <(words "$rest") ;;
    CMD) mapfile -t default < <(words "$rest") ;;
    *) fail "found $instruction, which this script does not know" ;;
  esac
done < <(sed -e ':a' -e '/\\$/{N;s/\\\n//;ba}' "$file")

[ $# -gt 0 ] || set -- "${default[@]}"
echo "--- ${entry[*]} $*"
chroot "$root" env -i "${environment[@]}" /bin/sh -c 'cd "$0" && exec "$@"' "$folder" "${entry[@]}" "$@"
