#!/usr/bin/env bash
# Makes a release: see `scripts/release.sh --help`.
set -euo pipefail
cd "$(dirname "$0")/.." || exit 1

usage() {
  cat <<'HELP'
usage: scripts/release.sh VERSION [--publish] [--without STAGE]...

Prepares the release VERSION from the last commit. It works in a clone, changes nothing here and uploads nothing, and leaves in
target/release-VERSION: the wheels, the packages of the crates, a list of dependencies for each wheel (CycloneDX), the section of the
changelog, and SHA256SUMS.

Stages, in this order:
  version   VERSION in every manifest, page and lock; "Unreleased" becomes the version's section of CHANGELOG.md
  checks    .ci/run
  semver    the API compared with the last tag, by scripts/semver.sh
  crates    packages of all crates, built from their packages in the order of their dependencies
  wheel     scripts/wheel.sh cpu
  cuda      scripts/wheel.sh cuda, which takes half an hour
  sums      lists of dependencies and checksums

  --without STAGE   leaves a stage out, to try the others
  --publish         afterwards commits and tags the version here, and uploads the crates. Not with --without, and only with the
                    package's `repository` filled in. It prints the commands that remain: pushing, and uploading the wheels.
HELP
}
fail() { echo "release: $*" >&2; exit 1; }

# --- Arguments -------------------------------------------------------------------------------------------------------

stages=(version checks semver crates wheel cuda sums)
version='' publish='' without=()
while [ $# -gt 0 ]; do
  case "$1" in
    --help | -h) usage; exit 0 ;;
    --publish) publish=1 ;;
    --without)
      [[ " ${stages[*]} " == *" ${2:-} "* ]] || fail "found --without ${2:-}, wanted one of ${stages[*]}"
      without+=("$2"); shift ;;
    -*) usage >&2; exit 2 ;;
    *) [ -z "$version" ] || { usage >&2; exit 2; }; version=$1 ;;
  esac
  shift
done
[[ "$version" =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || { usage >&2; exit 2; }
[ -z "$publish" ] || [ ${#without[@]} = 0 ] || fail "--publish wants every stage: leave out --without"
[ -z "$publish" ] || grep -q '^repository = "http' Cargo.toml || fail "Cargo.toml names no repository: fill in its line"
[ -z "$publish" ] || [ -z "$(git status --porcelain)" ] || fail "the working tree has changes: commit them"

clone=$(mktemp -d)
trap 'rm -rf "$clone"' EXIT
git clone --quiet --no-hardlinks . "$clone/kiln"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/target}"
out="$CARGO_TARGET_DIR/release-$version"
rm -rf "$out" && mkdir -p "$out"
here=$PWD
cd "$clone/kiln"

# --- Stages ----------------------------------------------------------------------------------------------------------

version() {
  local newest minor=${version%.*}
  newest=$(sed -nE 's/^## ([0-9]+\.[0-9]+\.[0-9]+) - .*/\1/p' CHANGELOG.md | sort -V | tail -n 1)
  [ "$(printf '%s\n' "${newest:-0.0.0}" "$version" | sort -V | tail -n 1)" = "$version" ] && [ "$newest" != "$version" ] ||
    fail "CHANGELOG.md has $newest already, wanted a version after it"
  grep -q '^## Unreleased$' CHANGELOG.md || fail "CHANGELOG.md has no section \"Unreleased\""

  sed -i -E "/^\[workspace\.package\]/,/^\[/ s/^version = .*/version = \"$version\"/; s/^(kiln-[a-z]+ = \{ version = )\"[^\"]+\"/\1\"$version\"/" Cargo.toml
  sed -i -E "s/^(kiln-[a-z]+ = (\{ version = )?)\"[0-9.]+\"/\1\"$minor\"/" {data,model,model/kernels}/README.md
  sed -i -E "s/(cargo add kiln-[a-z]+@)[0-9.]+/\1$minor/" docs/burn.md
  sed -i -E "s/^Kiln is at version [0-9.]+:/Kiln is at version $minor:/" README.md
  sed -i "s/^## Unreleased$/## $version - $(date -u +%F)/" CHANGELOG.md
  cargo update --quiet --workspace
  (cd examples/burn-project && cargo update --quiet kiln-data kiln-kernels)
  sed -n "/^## $version - /,/^## /{/^## /d;p}" CHANGELOG.md >"$out/CHANGES.md"
  [ -n "$(tr -d '[:space:]' <"$out/CHANGES.md")" ] || fail "the section \"Unreleased\" of CHANGELOG.md is empty"
  git -c user.name=release -c user.email=release@localhost commit --quiet --all --message "release: $version"
  git diff --stat HEAD~1 | tail -n 1
}

checks() { .ci/run; }

semver() { # by the checker that .ci/run has built; it skips without one, and a release does not
  PATH="$(dirname "${KILN_CI_TARGET:-$HOME/.cache/kiln-ci/target}")/tools/bin:$PATH" scripts/semver.sh || fail "the API was not compared"
}

crates() { # cargo orders the crates by their dependencies, and compiles each from its package
  cargo publish --workspace --dry-run --locked
  cargo package --workspace --no-verify --locked --quiet
  cp "$CARGO_TARGET_DIR"/package/kiln*-"$version".crate "$out"
}

wheel() { scripts/wheel.sh cpu "$out"; }
cuda() { scripts/wheel.sh cuda "$out"; }

sums() {
  local kind features
  for kind in cpu cuda; do
    features=(); [ $kind = cpu ] || features=(--features cuda)
    cargo tree -p kiln --locked -e normal,build --prefix none --target x86_64-unknown-linux-gnu "${features[@]}" -f '{p}|{l}' |
      python3 scripts/sbom.py Cargo.lock >"$out/kiln-$version-$kind.cdx.json"
  done
  (cd "$out" && sha256sum -- * >SHA256SUMS && cat SHA256SUMS)
}

# --- Main ------------------------------------------------------------------------------------------------------------

for stage in "${stages[@]}"; do
  [[ " ${without[*]} " != *" $stage "* ]] || { echo "=== $stage: left out"; continue; }
  echo "=== $stage"
  "$stage"
done
echo "prepared in $out"

if [ -n "$publish" ]; then
  cd "$here"
  git pull --quiet --ff-only "$clone/kiln" HEAD && git tag "v$version"
  cargo publish --workspace --locked
  echo "remaining: git push && git push origin v$version, and: pipx run twine upload $out/*.whl"
fi
