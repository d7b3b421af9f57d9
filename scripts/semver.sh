#!/usr/bin/env bash
# Compares the public API with a released version: see `scripts/semver.sh --help`.
set -euo pipefail
cd "$(dirname "$0")/.." || exit 1

usage() {
  cat <<'HELP'
usage: scripts/semver.sh [REVISION]

Compares the public API of every crate with the last release, and fails if a change breaks users although the version stayed the same.
Cargo's rules hold: before 1.0 such a change raises the second number, from 1.0 on the first.

REVISION is a tag or a commit. By default it is the newest tag `v*`, which a shallow clone fetches. Without any, only the checker is
tried: on a crate of two functions, one of which goes away. Features that are not a default are not compared.

The script needs `cargo-semver-checks` on the path and compiles with stable Rust. It exits with 77 where it cannot compare.
HELP
}
fail() { echo "semver: $*" >&2; exit 1; }
cannot() { echo "semver: $*" >&2; exit 77; }

case "${1:-}" in
  --help | -h) usage; exit 0 ;;
  -*) usage >&2; exit 2 ;;
esac
[ $# -le 1 ] || { usage >&2; exit 2; }
command -v cargo-semver-checks >/dev/null || cannot "cargo-semver-checks is not installed: cargo install --locked cargo-semver-checks"

export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/target}" CARGO_TERM_COLOR=never
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

# The flags with which cargo-semver-checks itself calls rustdoc. Only rustdoc may see RUSTC_BOOTSTRAP: build scripts read it, and Cargo
# would compile the dependencies anew.
json=(-Z unstable-options --output-format=json --document-private-items --document-hidden-items --cap-lints=allow)
printf '#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc "$@"\n' >"$place/rustdoc"
chmod +x "$place/rustdoc"

compare() { # BEFORE AFTER: two files of rustdoc's JSON, which name their versions. One version may add, and may not break.
  cargo-semver-checks semver-checks --baseline-rustdoc "$1" --current-rustdoc "$2"
}

# --- The checker itself ----------------------------------------------------------------------------------------------

sample() { # VERSION FUNCTION...
  printf 'pub fn %s() {}\n' "${@:2}" >"$place/sample.rs"
  "$place/rustdoc" --crate-name sample --crate-version "$1" --edition 2024 "${json[@]}" -o "$place/sample-$1" "$place/sample.rs"
}

sample 0.1.0 kept gone
sample 0.1.1 kept
sample 0.2.0 kept
before="$place/sample-0.1.0/sample.json"
compare "$before" "$place/sample-0.2.0/sample.json" >"$place/log" 2>&1 ||
  { cat "$place/log"; fail "cargo-semver-checks refuses a function that goes away in a new version: does it know this Rust?"; }
! compare "$before" "$place/sample-0.1.1/sample.json" >"$place/log" 2>&1 || { cat "$place/log"; fail "cargo-semver-checks misses a function that goes away"; }
grep -q 'gone' "$place/log" || { cat "$place/log"; fail "cargo-semver-checks does not name the function that goes away"; }

# --- The last release ------------------------------------------------------------------------------------------------

newest() { sort -V | tail -n 1; }
revision=${1:-$(git tag --list 'v*' | newest)}
if [ -z "$revision" ] && [ "$(git rev-parse --is-shallow-repository)" = true ]; then
  tags=$(git ls-remote --tags --refs origin 'v*') || cannot "this clone is shallow, and its origin cannot be reached"
  revision=$(sed 's#.*refs/tags/##' <<<"$tags" | newest)
  [ -z "$revision" ] || git fetch --quiet --depth 1 origin "refs/tags/$revision:refs/tags/$revision"
fi
[ -n "$revision" ] || { echo "the checker works; not compared: nothing is released yet (no tag v*)"; exit 0; }
commit=$(git rev-parse --verify --quiet "$revision^{commit}") || fail "found $revision, wanted a tag or a commit of this clone"

# --- Both APIs -------------------------------------------------------------------------------------------------------

version_of() { sed -n '/^\[workspace\.package\]/,/^\[/ s/^version = "\(.*\)"/\1/p' "$1/Cargo.toml"; }

api() { # FOLDER TARGET OUT [FLAG ...]: describes the crates of a folder as rustdoc's JSON, one file per crate
  rm -f "$2"/doc/kiln*.json
  # A flag that never repeats: Cargo knows nothing of these files, and must not think that they are up to date.
  (cd "$1" && RUSTDOC="$place/rustdoc" RUSTDOCFLAGS="${json[*]} --cfg=run_$$_$RANDOM" CARGO_TARGET_DIR="$2" \
    cargo doc --workspace --lib --no-deps --locked --quiet "${@:4}") || return
  mkdir -p "$3" && mv "$2"/doc/kiln*.json "$3"
}

# The API of a commit does not change, so it is kept. The compiler is today's: its JSON must be of one format. The target folder is
# another one: Cargo takes two clones in one target folder for one, and compares nothing but the times of their files. Macros of
# dependencies run once there, so optimizing them would take longer.
kept="$CARGO_TARGET_DIR/api/$commit-$(rustc -V | cut -d' ' -f2)"
mkdir "$place/before"
git archive "$commit" | tar -x -C "$place/before"
if [ ! -e "$kept/complete" ]; then
  cp rust-toolchain.toml "$place/before/"
  rm -rf "$kept"
  api "$place/before" "$place/target" "$kept" --config 'profile.dev.package."*".opt-level=0' || fail "the crates of $revision do not compile"
  rm -rf "$place/target"
  touch "$kept/complete"
fi
api . "$CARGO_TARGET_DIR" "$place/after" || fail "the crates do not compile"

# --- The comparison --------------------------------------------------------------------------------------------------

was=$(version_of "$place/before") now=$(version_of .) broken=()
for before in "$kept"/kiln*.json; do
  name=$(basename "$before" .json)
  if [ ! -e "$place/after/$name.json" ]; then
    echo "$name: the crate has gone"
    [ "$was" != "$now" ] || broken+=("$name")
  elif compare "$before" "$place/after/$name.json" >"$place/log" 2>&1; then
    echo "$name: $(grep -E '^ +Summary' "$place/log" | sed -E 's/^ +Summary +//' | head -n 1)"
  else
    cat "$place/log"
    broken+=("$name")
  fi
done
[ ${#broken[@]} = 0 ] || fail "${broken[*]}: users of $revision ($was) cannot compile with this tree, whose version is $now. Take the changes back, or raise \`version\` in Cargo.toml: before 1.0 its second number, from 1.0 on its first"
