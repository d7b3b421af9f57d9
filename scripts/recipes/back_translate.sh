#!/usr/bin/env bash
# Text of the target language alone as training data: see `scripts/recipes/back_translate.sh --help`.
set -euo pipefail
. "$(dirname "$0")/translate.sh"

usage() {
  cat <<'HELP'
usage: scripts/recipes/back_translate.sh [--sample] [--lines N] KILN REVERSE PAIRS MONOLINGUAL OUT [OPTION]...

Tagged back-translation (Sennrich et al. 2016, Caswell et al. 2019). The program KILN translates the lines of the file MONOLINGUAL
with the run REVERSE, from the target language to the source language: with beams, or with --sample at random, as Edunov et
al. (2018) advise for much text. It then trains OUT/translator on PAIRS and on the translations, whose sources begin with <BT>.
PAIRS names two files of lines, source,target. An OPTION is one of `kiln train`:

  scripts/recipes/back_translate.sh kiln runs/it-en pairs.en,pairs.it news.it back --preset base --set data.valid=dev.en,dev.it

The same command goes on where an earlier one ended: lines are translated in parts of N (20000), and the translator is resumed.
HELP
}

search=() lines=20000
while [ $# -gt 1 ] || [ "${1:-}" = --help ]; do
  case "$1" in
    --help) usage; exit 0 ;;
    --sample) search=(--sample); shift ;;
    --lines) lines=$2; shift 2 ;;
    *) break ;;
  esac
done
[ $# -ge 5 ] || { usage >&2; exit 2; }
kiln=$1 reverse=$2 pairs=$3 monolingual=$4 out=$5
shift 5
mkdir -p "$out"

translate_in_parts "$kiln" "$reverse" "$monolingual" "$out" "$lines" "${search[@]}"
cat >"$out/mix.toml" <<MIX
[[data.mix]]
name = "pairs"
train = ["$pairs"]

[[data.mix]]
name = "back"
train = ["$out/translations,$out/lines"]
tag = "<BT>"
MIX
"$kiln" train --config "$out/mix.toml" --run "$out/translator" --resume auto "$@"
