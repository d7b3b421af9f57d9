#!/usr/bin/env bash
# One attempt at the speedrun: trains on TEXT/train.txt, and prints the loss on TEXT/dev.txt and the minutes.
# usage: run.sh TEXT RUN [options of kiln train]      TEXT: the folder that scripts/corpora/english.sh wrote
# Without options it repeats the record. KILN names the program (default: kiln).
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,4p' "$0" >&2; exit 2; }
text=$1 run=$2
shift 2
for file in train.txt dev.txt; do
  [ -f "$text/$file" ] || { echo "run.sh: no $text/$file; scripts/corpora/english.sh $text makes it" >&2; exit 2; }
done
record=(--preset modern-124m --set loader.batch_tokens=32768 --set train.grad_accum_steps=1 --set train.steps=500 --set optim.warmup_steps=20)
[ $# -gt 0 ] || set -- "${record[@]}"

"${KILN:-kiln}" train --task lm --run "$run" --set data.train="$text/train.txt" --set data.valid="$text/dev.txt" \
  --set data.text.packing=stream --set train.validate_every=0 --set train.save_every=0 "$@"

python3 - "$run" <<'END'
import json, sys
records = [json.loads(line) for line in open(sys.argv[1] + "/metrics.jsonl")]
loss = [r["loss"] for r in records if r["kind"] == "validation"][-1]
end = [r for r in records if r["kind"] == "end"][-1]
print(f"validation loss {loss:.4f} after {end['step']} steps, {end['tokens'] / 1e6:.1f} M tokens, {end['train_secs'] / 60:.2f} minutes of training")
END
