#!/usr/bin/env bash
# Checks on a machine with a GPU: see `scripts/gpu-check.sh --help`.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

usage() {
  cat <<'HELP'
usage: scripts/gpu-check.sh [--build] [STAGE ...]

Runs what needs a GPU, before a change to kernels or to the training step goes in. Each stage prints a line or a short
table; all other output goes to files in $OUT. A stage that lacks something is skipped with a message. The exit code is 1
if a stage failed, and 2 for an unknown stage.

Stages, in the default order:
  models     tests of kiln-model on the GPU
  replay     steps replayed as CUDA graphs equal eager ones, bit for bit
  steps      time of training steps, compared with PyTorch
  repeats    two runs and a resumed one end with the same bits               needs EN_IT
  reference  losses with kernels stay as close to losses with the reference
             operators as another seed                                       needs EN_IT, LM
  score      BLEU of a translator and its training time; the baseline's
             figure comes from benches/pytorch/translate.py                  needs EN_IT
  operators  time of each operator, compared with PyTorch
  kernels    tests of kiln-kernels on the GPU, one process per operator
  memcheck   the same tests under compute-sanitizer, which takes more than ten
             minutes: reads and writes outside
             of allocations                                                  only if named
  racecheck  the same with the kernels for Ampere: hazards in shared memory   only if named

  --build    builds kiln and the test programs first, with --features cuda

Environment:
  KILN          the program               default: target/release/kiln
  KERNEL_TESTS  tests of kiln-kernels     default: the newest ones in target/release/deps
  MODEL_TESTS   tests of kiln-model       default: the newest ones in target/release/deps
  EN_IT         translation corpus        default: corpora/en-it, from `scripts/corpora/parallel.sh it corpora/en-it`
  LM            text corpus               default: corpora/lm, from `scripts/corpora/lm.sh corpora/lm`
  PEER          another PyTorch baseline  default: the one that kiln carries; `none` leaves PyTorch out
  KILN_PYTHON   Python with PyTorch       default: python3
  DEVICE        device                    default: cuda; with cpu, the script itself can be tried out
  OUT           folder for runs and logs  default: a temporary folder
  STEPS         steps of compared runs    default: 200
  EN_IT_STEPS   steps of the scored run   default: 7000
  WORKLOADS     workloads of replay and steps
  COMPUTE_SANITIZER  the checker          default: compute-sanitizer
  JOBS          checked tests at a time   default: 8
  PRESET        preset of translators     default: base

The programs may come from another machine: copy them and name them in KILN, KERNEL_TESTS and MODEL_TESTS.
HELP
}

target="${CARGO_TARGET_DIR:-target}"
KILN="${KILN:-$target/release/kiln}"
EN_IT="${EN_IT:-corpora/en-it}"
LM="${LM:-corpora/lm}"
DEVICE="${DEVICE:-cuda}"
STEPS="${STEPS:-200}"
EN_IT_STEPS="${EN_IT_STEPS:-7000}"

# --- What a stage needs: status 3 skips it ---------------------------------------------------------------------------

skip() { echo "skipped: $1"; return 3; }
need_en_it() { [ -s "$EN_IT/en-it.train.jsonl" ] || skip "there is no corpus in $EN_IT; make it, or set EN_IT"; }
need_lm()    { [ -s "$LM/train.txt" ] || skip "there is no text in $LM; make it, or set LM"; }

# The newest test program NAME-HASH that has a test in MODULE.
newest_tests() { # NAME MODULE
  local program
  for program in $(ls -t "$target/release/deps/$1"-* 2>/dev/null); do
    [ -x "$program" ] && [ ! -d "$program" ] || continue
    [[ $'\n'"$("$program" --list 2>/dev/null)" != *$'\n'"$2::"* ]] || { realpath "$program"; return; }
  done
  return 1
}

# PyTorch is left out on a CPU, where the baseline cannot run, and if Python does not have it.
peer_arguments() {
  case "${PEER:-}" in
    none) return ;;
    ?*) echo "--peer $PEER"; return ;;
  esac
  [ "$DEVICE" != cpu ] || return
  local has_torch="import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
  if "${KILN_PYTHON:-python3}" -c "$has_torch" 2>/dev/null; then
    echo --peer
  else
    echo "without PyTorch: ${KILN_PYTHON:-python3} does not have it; set KILN_PYTHON" >&2
  fi
}

# --- Building blocks -------------------------------------------------------------------------------------------------

train() { # RUN ARGUMENTS...: trains a new run, with its output in $OUT
  local run="$OUT/$1"; shift
  rm -rf "$run"
  "$KILN" train --device "$DEVICE" --run "$run" "$@" >"$run.log" 2>&1 || { echo "failed: kiln train $*"; tail -n 5 "$run.log"; return 1; }
}
pairs() { echo --preset "${PRESET:-base}" --set "data.train=[\"$EN_IT/en-it.train.jsonl\"]" --set "data.valid=[\"$EN_IT/en-it.dev.jsonl\"]"; }
texts() { echo --task lm --set "data.train=$LM/train.txt" --set "data.valid=$LM/dev.txt"; }
short() { echo --set "train.steps=$STEPS" --set "optim.warmup_steps=$((STEPS / 10))"; }
run_tests() { # PROGRAM FOLDER LOG [MODULE]; compiling kernels without a GPU is left to CI
  (cd "$2" && "$1" --skip kernels_compile ${4:+"$4::" --skip "_$4::"} >"$OUT/$3.log" 2>&1); local rc=$?
  grep -E "^test result|FAILED|panicked" "$OUT/$3.log" || tail -n 3 "$OUT/$3.log"
  return $rc
}
build() {
  cargo build --release --features cuda &&
    cargo test --release --features cuda -p kiln -p kiln-kernels --lib --no-run &&
    cargo test --release --features cuda -p kiln-model --test it --no-run
}

# --- Stages ----------------------------------------------------------------------------------------------------------

models() {
  local program
  program=$(realpath -e "${MODEL_TESTS:-$(newest_tests it parity)}" 2>/dev/null) ||
    skip "there are no tests of kiln-model; run with --build, or set MODEL_TESTS" || return
  run_tests "$program" model models
}

# The kernels of one process are compiled one after the other, so each operator gets a process.
kernels() {
  local program operator pid pids=() rc=0
  program=$(realpath -e "${KERNEL_TESTS:-$(newest_tests kiln_kernels linear)}" 2>/dev/null) ||
    skip "there are no tests of kiln-kernels; run with --build, or set KERNEL_TESTS" || return
  for operator in $("$program" --list | sed -n 's/^\([a-z_]*\)::.*: test$/\1/p' | sort -u); do
    (found=$(run_tests "$program" model/kernels "kernels-$operator" "$operator"); rc=$?; echo "$operator: $found"; exit $rc) &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || rc=1; done
  return $rc
}

# The tests that launch kernels, a line for each process. A checked kernel runs many times slower, so attention's cases are shared out.
checked_tests() { # PROGRAM
  "$1" --list | sed -n 's/: test$//p' |
    grep -Ev 'kernels_compile|times|rates|^(capture|collective|compilation|gpu|host|settings)::' |
    awk '/^attention::tests::(values|bf16|dropped|f32)/ { for (i = 0; i < 12; i++) print $0, i "/12"; next } { print $0, "0/1" }'
}
check_test() { # TOOL PROGRAM TEST PART
  local log="$OUT/$1-${3//::/-}-${4/\//of}.log"
  KILN_TEST_PART=$4 "$COMPUTE_SANITIZER" --tool "$1" --require-cuda-init no --error-exitcode 9 "$2" --exact "$3" >"$log" 2>&1 &&
    grep -q "test result: ok. 1 passed" "$log" && return
  echo "$3 $4: $(grep -m1 -E '========= (Invalid|Race|Error|Program|RACECHECK|ERROR)|panicked' "$log"), see $log"
  return 1
}
sanitize() { # TOOL
  local program
  command -v "${COMPUTE_SANITIZER:=compute-sanitizer}" >/dev/null || skip "there is no $COMPUTE_SANITIZER: it comes with CUDA, or set COMPUTE_SANITIZER" || return
  program=$(realpath -e "${KERNEL_TESTS:-$(newest_tests kiln_kernels linear)}" 2>/dev/null) ||
    skip "there are no tests of kiln-kernels; run with --build, or set KERNEL_TESTS" || return
  export COMPUTE_SANITIZER OUT
  export -f check_test
  (cd model/kernels && checked_tests "$program" | xargs -P "${JOBS:-8}" -L 1 bash -c 'check_test "$@"' _ "$1" "$program") || return
  echo "$(checked_tests "$program" | wc -l) processes are clean"
}
memcheck()  { sanitize memcheck; }
racecheck() { KILN_KERNELS=ampere sanitize racecheck; }

replay()    { "$KILN" bench ${WORKLOADS:-tiny gpt} --capture --steps 10 --repeats 2 --device "$DEVICE"; }
steps()     { "$KILN" bench ${WORKLOADS:-gpt gpt64 mt} --steps 20 --repeats 5 --device "$DEVICE" $(peer_arguments); }
operators() { "$KILN" bench tiny --operators --repeats 15 --device "$DEVICE" $(peer_arguments); }

# Trains twice, the second time with replays, and once more from the middle: all three end with the same bits.
repeats() {
  need_en_it || return
  local arguments="$(pairs) $(short) --set train.deterministic=true --set train.save_every=$((STEPS / 2))"
  train once $arguments && train again $arguments --set train.capture=on || return 1

  rm -rf "$OUT/resumed" && cp -r "$OUT/once" "$OUT/resumed" && rm -rf "$OUT/resumed/checkpoints/step-$(printf %08d "$STEPS")"
  "$KILN" train --run "$OUT/resumed" --resume --device "$DEVICE" >"$OUT/resumed.log" 2>&1 || { tail -n 5 "$OUT/resumed.log"; return 1; }

  local hashes=()
  for run in once again resumed; do
    hashes+=("$(cd "$OUT/$run/checkpoints/step-$(printf %08d "$STEPS")" && sha256sum model.safetensors optimizer.safetensors | cut -c1-16 | tr '\n' ' ')")
    echo "$run: ${hashes[-1]}"
  done
  [ "${hashes[0]}" = "${hashes[1]}" ] && [ "${hashes[0]}" = "${hashes[2]}" ]
}

# Compares kernels with the reference operators, and with another seed.
reference() {
  local what task
  for what in lm mt; do
    if [ $what = lm ]; then need_lm || return; task=$(texts); else need_en_it || return; task=$(pairs); fi
    task="$task $(short) --set train.log_every=$((STEPS / 20))"
    train $what-kernels $task && train $what-reference $task --reference-operators && train $what-seed $task --set seed=2 || return 1
    echo "$what:"; "$KILN" compare "$OUT/$what-kernels" "$OUT/$what-reference" "$OUT/$what-seed" | tail -n 2
  done
}

# BLEU of a translator, and the seconds of its training. PyTorch's figure comes from benches/pytorch/translate.py.
score() {
  need_en_it || return
  train scored $(pairs) --set "train.steps=$EN_IT_STEPS" || return 1
  grep -h "of training" "$OUT/scored.log" | tail -n 1
  "$KILN" evaluate "$OUT/scored" --device "$DEVICE" --data "$EN_IT/en-it.test.jsonl" 2>>"$OUT/scored.log"
  local rc=$?
  echo "baseline: benches/pytorch/translate.py $EN_IT/en-it.{train,dev,test}.jsonl --minutes 5 --epochs 22"
  return $rc
}

# --- Main ------------------------------------------------------------------------------------------------------------

default=(models replay steps repeats reference score operators kernels)
known=("${default[@]}" memcheck racecheck)
stages=()
for argument in "$@"; do
  case "$argument" in
    -h | --help) usage; exit 0 ;;
    --build) build || exit 1 ;;
    *) [[ " ${known[*]} " == *" $argument "* ]] || { echo "no stage $argument; stages are ${known[*]}" >&2; exit 2; }
       stages+=("$argument") ;;
  esac
done
[ ${#stages[@]} -gt 0 ] || stages=("${default[@]}")

[ -x "$KILN" ] || { echo "there is no program $KILN: run with --build, or set KILN" >&2; exit 1; }
KILN=$(realpath "$KILN")
OUT="${OUT:-$(mktemp -d)}"
mkdir -p "$OUT"
OUT=$(realpath "$OUT")
echo "runs and logs: $OUT"

failed=()
for stage in "${stages[@]}"; do
  echo "=== $stage"
  start=$SECONDS
  "$stage" 2>&1; rc=$?
  [ $rc = 0 ] || [ $rc = 3 ] || failed+=("$stage")
  echo "($((SECONDS - start)) s)"
done
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}"; exit 1; }
