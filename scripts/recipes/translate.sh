# Translates a file part by part, for the recipes in this folder: `translate_in_parts KILN RUN FILE OUT LINES [OPTION]...` writes
# OUT/translations and the lines that they belong to, OUT/lines. A line without a translation is in neither.
#
# The parts lie in OUT/parts until all are there. A part that is finished is not translated again, whatever ended the last attempt.
translate_in_parts() {
  local kiln=$1 run=$2 file=$3 out=$4 lines=$5 parts=$4/parts made part target
  shift 5
  [ -s "$file" ] || { echo "$file: no lines to translate" >&2; return 1; }
  made="$(cksum <"$file") $run $lines $*"
  if [ -e "$out/made" ] && [ "$(cat "$out/made")" != "$made" ]; then
    echo "$out was begun with another file, run or options: take those, or another folder" >&2
    return 1
  fi
  [ ! -e "$out/translations" ] || return 0

  if [ ! -e "$out/made" ]; then
    rm -rf "$parts" && mkdir -p "$parts"
    split -l "$lines" -d -a 6 "$file" "$parts/source."
    printf '%s\n' "$made" >"$out/made.new" && mv "$out/made.new" "$out/made"
  fi
  for part in "$parts"/source.*; do
    target=$parts/target.${part##*.}
    [ ! -e "$target" ] || continue
    "$kiln" translate "$run" "$@" <"$part" >"$target.new" || return 1
    if [ "$(wc -l <"$target.new")" != "$(grep -c '' "$part")" ]; then
      echo "$part: other numbers of lines and translations" >&2
      return 1
    fi
    mv "$target.new" "$target"
  done

  : >"$out/lines" && : >"$out/translations.new"
  cat "$parts"/target.* | paste -d $'\001' "$file" - |
    awk -F $'\001' -v lines="$out/lines" -v translations="$out/translations.new" '
      $1 != "" && $2 != "" { print $1 >>lines; print $2 >>translations; next }
      { left_out++ }
      END { if (left_out) print left_out " of " NR " lines have no translation and are left out" }' >&2
  [ -s "$out/lines" ] || { echo "$run translates no line of $file" >&2; return 1; }
  mv "$out/translations.new" "$out/translations" && rm -r "$parts"
}
