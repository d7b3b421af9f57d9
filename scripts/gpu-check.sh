#!/usr/bin/env bash
# What is run on a machine with a GPU before a change to kernels or to the step goes in: the tests that skip elsewhere, and the
# claims of README and benches/results. A line or a short table a stage; everything else goes to $OUT.
#
#   cargo build --release --features cuda
#   cargo test --release --features cuda -p kiln-kernels --lib --no-run     # prints the path for KERNEL_TESTS
#   cargo test --release --features cuda -p kiln-model --test it --no-run   # and for MODEL_TESTS
#   KILN=target/release/kiln KERNEL_TESTS=... MODEL_TESTS=... EN_IT=corpora/en-it LM=corpora/lm PEER=torch_peer.py scripts/gpu-check.sh [stage ...]
#
# The programs may come from another machine. What a stage lacks is said and the stage skipped; EN_IT and LM are what
# scripts/corpora/parallel.sh it and scripts/corpora/lm.sh make. Exit code 1 if a stage failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

KILN=$(realpath "${KILN:-target/release/kiln}")
DEVICE="${DEVICE:-cuda}" # cpu shows that the script works
OUT="${OUT:-$(mktemp -d)}"
STEPS="${STEPS:-200}"            # of the runs that are compared
EN_IT_STEPS="${EN_IT_STEPS:-7000}" # of the one that is scored
mkdir -p "$OUT"

lacks() { echo "skipped: $1 is not set"; return 3; }
train() { # RUN ARGS...: a run of its own, its output in $OUT
  local run="$OUT/$1"; shift
  rm -rf "$run"
  "$KILN" train --device "$DEVICE" --run "$run" "$@" >"$run.log" 2>&1 || { echo "failed: kiln train $*"; tail -n 5 "$run.log"; return 1; }
}
pairs() { echo --preset "${PRESET:-base}" --set "data.train=[\"$EN_IT/en-it.train.jsonl\"]" --set "data.valid=[\"$EN_IT/en-it.dev.jsonl\"]"; }
texts() { echo --task lm --set "data.train=$LM/train.txt" --set "data.valid=$LM/dev.txt"; }
short() { echo --set "train.steps=$STEPS" --set "optim.warmup_steps=$((STEPS / 10))"; }
tests() { # PROGRAM FOLDER LOG [MODULE]: compiling kernels for a GPU that is not there is CI's
  (cd "$2" && "$1" --skip kernels_compile ${4:+"$4::" --skip "_$4::"} >"$OUT/$3.log" 2>&1); local rc=$?
  grep -E "^test result|FAILED|panicked" "$OUT/$3.log" || tail -n 3 "$OUT/$3.log"
  return $rc
}

kernels() { # a process for each operator, side by side: within one, kernels are compiled one after the other
  [ -n "${KERNEL_TESTS:-}" ] || lacks KERNEL_TESTS || return
  local program operator pid pids=() rc=0
  program=$(realpath "$KERNEL_TESTS")
  for operator in $("$program" --list | sed -n 's/^\([a-z_]*\)::.*: test$/\1/p' | sort -u); do
    (found=$(tests "$program" model/kernels "kernels-$operator" "$operator"); rc=$?; echo "$operator: $found"; exit $rc) &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || rc=1; done
  return $rc
}
models()  { [ -n "${MODEL_TESTS:-}" ] || lacks MODEL_TESTS || return; tests "$(realpath "$MODEL_TESTS")" model models; }
replay()  { "$KILN" bench ${WORKLOADS:-tiny gpt} --capture --steps 10 --repeats 2 --device "$DEVICE"; }
steps()   { "$KILN" bench ${WORKLOADS:-gpt gpt64 mt} --steps 20 --repeats 5 --device "$DEVICE" ${PEER:+--peer "$PEER"}; }
operators() { "$KILN" bench tiny --operators --repeats 15 --device "$DEVICE" ${PEER:+--peer "$PEER"}; }
repeats() { # twice, the second time replayed, and once more from the middle: the same bits
  [ -n "${EN_IT:-}" ] || lacks EN_IT || return
  local args="$(pairs) $(short) --set train.deterministic=true --set train.save_every=$((STEPS / 2))"
  train once $args && train again $args --set train.capture=on || return 1
  rm -rf "$OUT/resumed" && cp -r "$OUT/once" "$OUT/resumed" && rm -rf "$OUT/resumed/checkpoints/step-$(printf %08d "$STEPS")"
  "$KILN" train --run "$OUT/resumed" --resume --device "$DEVICE" >"$OUT/resumed.log" 2>&1 || { tail -n 5 "$OUT/resumed.log"; return 1; }
  local hashes=()
  for run in once again resumed; do
    hashes+=("$(cd "$OUT/$run/checkpoints/step-$(printf %08d "$STEPS")" && sha256sum model.safetensors optimizer.safetensors | cut -c1-16 | tr '\n' ' ')")
    echo "$run: ${hashes[-1]}"
  done
  [ "${hashes[0]}" = "${hashes[1]}" ] && [ "${hashes[0]}" = "${hashes[2]}" ]
}
plain()   { # kernels beside definitions, and another seed
  local what task
  for what in lm mt; do
    if [ $what = lm ]; then [ -n "${LM:-}" ] || lacks LM || return; task=$(texts); else [ -n "${EN_IT:-}" ] || lacks EN_IT || return; task=$(pairs); fi
    task="$task $(short) --set train.log_every=$((STEPS / 20))"
    train $what-kernels $task && train $what-plain $task --reference-operators && train $what-seed $task --set seed=2 || return 1
    echo "$what:"; "$KILN" compare "$OUT/$what-kernels" "$OUT/$what-plain" "$OUT/$what-seed" | tail -n 2
  done
}
score()   { # BLEU of a translator, and the seconds that it was trained
  [ -n "${EN_IT:-}" ] || lacks EN_IT || return
  train scored $(pairs) --set "train.steps=$EN_IT_STEPS" || return 1
  grep -h "of training" "$OUT/scored.log" | tail -n 1
  "$KILN" evaluate "$OUT/scored" --device "$DEVICE" --data "$EN_IT/en-it.test.jsonl" 2>>"$OUT/scored.log"
}

known=(models replay steps repeats plain score operators kernels)
stages=("$@")
[ ${#stages[@]} -gt 0 ] || stages=("${known[@]}")
failed=()
for stage in "${stages[@]}"; do
  declare -F "$stage" >/dev/null || { echo "no stage $stage; stages are ${known[*]}" >&2; exit 2; }
  echo "=== $stage"
  start=$SECONDS
  "$stage" 2>&1; rc=$?
  [ $rc = 0 ] || [ $rc = 3 ] || failed+=("$stage")
  echo "($((SECONDS - start)) s)"
done
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}"; exit 1; }
