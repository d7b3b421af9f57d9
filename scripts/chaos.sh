#!/usr/bin/env bash
# The share of throughput that survives a rate of faults: see `scripts/chaos.sh --help`.
set -euo pipefail
cd "$(dirname "$0")/.." || exit 1

usage() {
  cat <<'HELP'
usage: scripts/chaos.sh [--minutes M] [--every S] [--save-every N] [--preset NAME] [--devices LIST] [--side-by-side]
                        [--torchrun] [--set KEY=VALUE]... KILN OUT

Trains twice with the program KILN, for M minutes each (30): undisturbed, and with `--restarts` while a random process of
the run is killed (SIGKILL) every S seconds (30). Both save every N steps (20). A step has 256 tokens a
rank unless `--set loader.batch_tokens` says otherwise. OUT is a new folder for runs and logs.
With `--side-by-side` both run at the same time, each on a half of the processors. With `--torchrun` a third one has as many
ranks on the CPU, which PyTorch's `torchrun --max-restarts` starts again; it only counts steps.

Prints the share: the last step of the disturbed run, divided by that of the undisturbed one. Then it trains the run that
is behind until both have taken the same steps, and compares weights and moments bit for bit. What is lost is split into
  detection   from the kill to the restart
  start       from the restart to the checkpoint
  load        from the checkpoint to the first step
  repeated    steps that are taken again
The exit code is 1 if the bits differ.
HELP
}

minutes=30 every=30 save_every=20 preset=gpt2-mini devices=cpu,cpu side_by_side= torchrun=
# Steps of a second, so that there are some between two kills.
extra=(--set loader.batch_tokens=256)
while [ $# -gt 2 ] || [ "${1:-}" = --help ]; do
  case "$1" in
    --help) usage; exit 0 ;;
    --side-by-side) side_by_side=1; shift; continue ;;
    --torchrun) torchrun=1; shift; continue ;;
    --minutes) minutes=$2 ;;
    --every) every=$2 ;;
    --save-every) save_every=$2 ;;
    --preset) preset=$2 ;;
    --devices) devices=$2 ;;
    --set) extra+=(--set "$2") ;;
    *) usage >&2; exit 2 ;;
  esac
  shift 2
done
[ $# = 2 ] || { usage >&2; exit 2; }
kiln=$(realpath "$1") out=$2
mkdir -p "$out"

# A schedule without an end, so that both runs can stop at any step.
alone=(--preset "$preset" --set train.steps=100000000 --set optim.schedule=constant
  --set "train.save_every=$save_every" --set train.validate_every=0 --set train.log_every=1 "${extra[@]}")
settings=(--devices "$devices" "${alone[@]}")
last() { sed 's/step-0*//' "$1/checkpoints/last"; }
stamped() { while IFS= read -r line; do printf '%s %s\n' "$(date +%s.%N)" "$line"; done; }

# The first run makes vocabulary and token cache, which both runs find then.
"$kiln" train "${settings[@]}" --quiet --run "$out/first" --set train.max_minutes=0.05 --set "data.cache_dir=$out/cache" >"$out/first.log" 2>&1 ||
  { cat "$out/first.log" >&2; exit 1; }
settings+=(--set "data.cache_dir=$out/cache") alone+=(--set "data.cache_dir=$out/cache")

# A part of the processors for each run.
first=() second=() third=() part=$(nproc) n_runs=$((torchrun ? 3 : 2))
if [ -n "$side_by_side" ]; then
  part=$(($(nproc) / n_runs))
  [ "$part" -gt 0 ] || { echo "$(nproc) processors have no $n_runs parts" >&2; exit 2; }
  of() { echo taskset -c "$(($1 * part))-$((($1 + 1) * part - 1))"; }
  read -ra first <<<"$(of 0)"; read -ra second <<<"$(of 1)"; read -ra third <<<"$(of 2)"
fi

undisturbed() {
  echo "undisturbed: $minutes minutes"
  timeout -s TERM "$seconds" "${first[@]}" "$kiln" train "${settings[@]}" --run "$out/undisturbed" 2>&1 | stamped >"$out/undisturbed.log" || true
}

# Kills a random child of the launcher, a child of process $1 that has $3 among its arguments, again and again; writes the times to $2.
kills() {
  local launcher victim
  : >"$2"
  while sleep "$every" && kill -0 "$1" 2>/dev/null; do
    launcher=$(pgrep -P "$1" -f -- "$3") || break
    victim=$(pgrep -P "$launcher" | shuf -n 1) || continue
    kill -KILL "$victim" 2>/dev/null && date +%s.%N >>"$2"
  done
}

disturbed() {
  echo "disturbed: $minutes minutes, a kill every $every s"
  timeout -s TERM "$seconds" "${second[@]}" "$kiln" train "${settings[@]}" --run "$out/disturbed" --restarts 100000 > >(stamped >"$out/disturbed.log") 2>&1 &
  local timer=$!
  kills "$timer" "$out/kills" --restarts
  wait "$timer" || true
}

under_torchrun() {
  echo "under torchrun: $minutes minutes, a kill every $every s"
  local n; n=$(tr , '\n' <<<"$devices" | wc -l)
  RAYON_NUM_THREADS=$((part / n > 0 ? part / n : 1)) timeout -s TERM "$seconds" "${third[@]}" torchrun --no-python --nproc-per-node "$n" --max-restarts 100000 -- \
    "$kiln" train "${alone[@]}" --device cpu --run "$out/torchrun" --resume auto > >(stamped >"$out/torchrun.log") 2>&1 &
  local timer=$!
  kills "$timer" "$out/torchrun.kills" --nproc-per-node
  wait "$timer" || true
}

seconds=$(awk "BEGIN { print $minutes * 60 }")
if [ -n "$side_by_side" ]; then
  undisturbed &
  [ -z "$torchrun" ] || under_torchrun &
  disturbed
  wait
else
  undisturbed
  disturbed
  [ -z "$torchrun" ] || under_torchrun
fi

n=$(last "$out/undisturbed") m=$(last "$out/disturbed")
python3 - "$out" "$n" "$m" "$minutes" <<'PYTHON'
import json, re, sys
out, whole, reached, minutes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
kills = [float(line) for line in open(f"{out}/kills")]
log = []
for line in open(f"{out}/disturbed.log", errors="replace"):
    time, _, text = line.partition(" ")
    log.append((float(time), text))
steps = [json.loads(line) for line in open(f"{out}/disturbed/metrics.jsonl")]
# A line of metrics is written after its last step.
lines = [(line["time"], line["step"]) for line in steps if line["kind"] == "window"]
per_step = minutes * 60 / whole
lost = dict.fromkeys(["detection", "start", "load", "repeated"], 0.0)
counted = 0
for kill in kills:
    after = [(time, text) for time, text in log if time >= kill]
    restart = next(((t, x) for t, x in after if x.startswith("restart ")), None)
    resumed = restart and next(((t, x) for t, x in after if "resuming from" in x and t >= restart[0]), None)
    line = resumed and next((line for line in lines if line[0] >= resumed[0]), None)
    if not line:
        continue
    counted += 1
    lost["detection"] += restart[0] - kill
    lost["start"] += resumed[0] - restart[0]
    done = re.search(r"after step (\d+)", restart[1])
    saved = int(re.search(r"step-0*(\d+)", resumed[1])[1])
    lost["load"] += line[0] - resumed[0] - (line[1] - saved) * per_step
    if done:
        lost["repeated"] += max(0, int(done[1]) - saved) * per_step
print(f"undisturbed {whole} steps, disturbed {reached}: share {100 * reached / whole:.1f} %, {len(kills)} kills in {minutes:g} minutes")
for part, seconds in lost.items():
    print(f"  {part:<10} {seconds / max(counted, 1):6.2f} s a kill, {100 * seconds / (minutes * 60):5.2f} % of the time")
PYTHON

if [ -n "$torchrun" ]; then
  steps=$(last "$out/torchrun")
  awk "BEGIN { printf \"under torchrun: %d steps, share %.1f %%, $(wc -l <"$out/torchrun.kills") kills\\n\", $steps, 100 * $steps / $n }"
fi

if [ "$n" -gt "$m" ]; then behind=disturbed to=$n; else behind=undisturbed to=$m; fi
"$kiln" train --run "$out/$behind" --resume --devices "$devices" --quiet --set "train.steps=$to" >"$out/rest.log" 2>&1
result=0
for file in model.safetensors optimizer.safetensors; do
  if cmp -s "$out/undisturbed/checkpoints/$(printf 'step-%08d' "$to")/$file" "$out/disturbed/checkpoints/$(printf 'step-%08d' "$to")/$file"; then
    echo "$file of step $to: equal bit for bit"
  else
    echo "$file of step $to: DIFFERENT"; result=1
  fi
done
exit $result
