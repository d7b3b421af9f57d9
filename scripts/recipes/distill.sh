#!/usr/bin/env bash
# A student from the translations of a teacher: see `scripts/recipes/distill.sh --help`.
set -euo pipefail
. "$(dirname "$0")/translate.sh"

usage() {
  cat <<'HELP'
usage: scripts/recipes/distill.sh [--beam N] [--lines N] KILN TEACHER SOURCE OUT [OPTION]...

Sequence-level knowledge distillation (Kim and Rush 2016). The program KILN translates the lines of the file SOURCE with the run
TEACHER and beams (4), and trains a student in OUT/student on the lines and their translations. An OPTION is one of `kiln train`:

  scripts/recipes/distill.sh kiln runs/en-it pairs.en distilled --preset small --set data.valid=dev.en,dev.it

The same command goes on where an earlier one ended: lines are translated in parts of N (20000), and the student is resumed.
HELP
}

beam=4 lines=20000
while [ $# -gt 1 ] || [ "${1:-}" = --help ]; do
  case "$1" in
    --help) usage; exit 0 ;;
    --beam) beam=$2; shift 2 ;;
    --lines) lines=$2; shift 2 ;;
    *) break ;;
  esac
done
[ $# -ge 4 ] || { usage >&2; exit 2; }
kiln=$1 teacher=$2 source=$3 out=$4
shift 4
mkdir -p "$out"

translate_in_parts "$kiln" "$teacher" "$source" "$out" "$lines" --beam "$beam"
"$kiln" train --set "data.train=$out/lines,$out/translations" --run "$out/student" --resume auto "$@"
