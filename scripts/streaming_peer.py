"""The PyTorch baseline of Kiln's streamed text: a DataLoader over a `datasets` data set in streaming mode, on the same text.

usage: streaming_peer.py FOLDER TEXT.jsonl [TEXT.jsonl ...] [--workers 0,1,2] [--secs 20] [--len 1024] [--rows 16]

FOLDER holds the `tokenizer.json` of Kiln's example `streamed_text` (see data/examples/). The data set shuffles its files and a buffer of
10,000 documents, tokenizes 1,000 documents with one call, appends an end token to each, and packs them into rows of `--len` tokens. Workers
share the files, so give it as many files as workers. Prints tokens per second after a warm-up of five seconds, which fills the buffer, and the
peak memory of the process and its workers.
"""

import argparse
import os
import time

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the workers run in parallel already

import datasets
import torch
from tokenizers import Tokenizer
from torch.utils.data import DataLoader

BUFFER = 10_000


def peak_mb():
    """Peak of the resident memory of this process and of its children, in MB."""
    total = 0
    for pid in os.listdir("/proc"):
        try:
            status = open(f"/proc/{pid}/status").read()
        except (OSError, ValueError):
            continue
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        if pid == str(os.getpid()) or fields.get("PPid", "").strip() == str(os.getpid()):
            total += int(fields.get("VmHWM", "0 kB").split()[0])
    return total / 1e3


def rows(files, tokenizer_path, length):
    """Returns an endless data set of rows, each `length` + 1 ids: inputs and labels overlap."""
    tokenizer = Tokenizer.from_file(tokenizer_path)
    tokenizer.encode_special_tokens = True
    end = tokenizer.token_to_id("</s>") or tokenizer.token_to_id("<|endoftext|>") or 0
    encode = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)

    def pack(batch):
        ids = []
        for encoding in encode(batch["text"], add_special_tokens=False):
            ids += encoding.ids
            ids.append(end)
        step = length + 1
        return {"ids": [ids[at : at + step] for at in range(0, len(ids) - step + 1, step)]}

    text = datasets.load_dataset("json", data_files=files, split="train", streaming=True)
    text = text.shuffle(seed=1, buffer_size=BUFFER)
    packed = text.map(pack, batched=True, batch_size=1000, remove_columns=["text"])
    return packed.repeat(None).with_format("torch")


def tokens_per_second(files, tokenizer, args, workers):
    data = rows(files, tokenizer, args.len)
    prefetch = {"prefetch_factor": 4, "persistent_workers": True} if workers else {}
    batches = iter(DataLoader(data, batch_size=args.rows, num_workers=workers, **prefetch))
    next(batches)
    for limit in (5.0, args.secs):
        start, tokens = time.perf_counter(), 0
        while time.perf_counter() - start < limit:
            tokens += next(batches)["ids"][:, 1:].numel()
        rate = tokens / (time.perf_counter() - start)
    return rate, peak_mb()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--workers", default="0,1,2")
    parser.add_argument("--secs", type=float, default=20)
    parser.add_argument("--len", type=int, default=1024)
    parser.add_argument("--rows", type=int, default=16)
    args = parser.parse_args()
    tokenizer = os.path.join(args.folder, "tokenizer.json")
    torch.set_num_threads(1)
    print(f"PyTorch {torch.__version__}, datasets {datasets.__version__}, {os.cpu_count()} cores", flush=True)
    print(f"{'workers':>8} {'streamed tokens/s':>18} {'peak MB':>8}", flush=True)
    for workers in map(int, args.workers.split(",")):
        rate, peak = tokens_per_second(args.files, tokenizer, args, workers)
        print(f"{workers:>8} {rate / 1e6:>16.2f} M {peak:>8.0f}", flush=True)


if __name__ == "__main__":
    main()
