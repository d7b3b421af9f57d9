"""The PyTorch baseline of Kiln's data loader: a DataLoader with `tokenizers` in its workers, on the same rows.

usage: loader_peer.py CORPUS.jsonl FOLDER [--workers 0,1,2,4,8] [--secs 10] [--cached]

FOLDER holds the `tokenizer.json` of Kiln's example `loader_throughput` (see data/examples/). The script plans batches without
tokens: it sorts rows into length buckets by the bytes of their texts, shuffles them, and cuts batches
under a budget of padded tokens. Workers read lines at stored offsets, parse JSON, tokenize the batch with one call, and
pad source, target input and labels into tensors, as a careful PyTorch user would write it. With --cached the ids of all
rows stay in memory (one flat array and offsets), and workers only gather and pad.
Prints non-padding source and label tokens per second after a warm-up of one second, as Kiln's benchmark does.
"""

import argparse
import json
import mmap
import os
import random
import time

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the workers run in parallel already

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.utils.data import DataLoader, Dataset

PAD, BOS, EOS, MULTIPLE, MAX_LEN = 0, 1, 2, 8, 128


class Rows(Dataset):
    """Batches by lists of row numbers: `__getitem__` takes a whole batch, so that a worker tokenizes it with one call."""

    def __init__(self, corpus, tokenizer):
        self.corpus, self.tokenizer_path = corpus, tokenizer
        self.offsets, self.lengths, at = [0], [], 0
        with open(corpus, "rb") as file:
            for line in file:
                at += len(line)
                self.offsets.append(at)
                row = json.loads(line)
                self.lengths.append((len(row["src"].encode()), len(row["trg"].encode())))
        self.text = self.tokenizer = None

    def __getitem__(self, rows):
        if self.text is None:  # once per worker
            self.text = mmap.mmap(os.open(self.corpus, os.O_RDONLY), 0, prot=mmap.PROT_READ)
            self.tokenizer = load_tokenizer(self.tokenizer_path)
        pairs = [json.loads(self.text[self.offsets[i] : self.offsets[i + 1]]) for i in rows]
        ids = encode_batch(self.tokenizer, [pair["src"] for pair in pairs] + [pair["trg"] for pair in pairs])
        kept = [(s, t) for s, t in zip(ids[: len(rows)], ids[len(rows) :]) if max(len(s), len(t)) < MAX_LEN]
        return collate([s for s, _ in kept], [t for _, t in kept])


class Cached(Dataset):
    """The same batches, from ids in memory."""

    def __init__(self, rows, tokenizer):
        encoded, self.offsets = [], [0]
        tokenizer = load_tokenizer(tokenizer)
        os.environ["TOKENIZERS_PARALLELISM"] = "true"
        with open(rows.corpus, encoding="utf-8") as file:
            texts = [text for line in file for row in [json.loads(line)] for text in (row["src"], row["trg"])]
        for start in range(0, len(texts), 10_000):
            for ids in encode_batch(tokenizer, texts[start : start + 10_000]):
                encoded.append(np.array(ids[: MAX_LEN - 1], dtype=np.uint16))
                self.offsets.append(self.offsets[-1] + len(encoded[-1]))
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        self.ids = np.concatenate(encoded)
        self.lengths = [
            (self.offsets[2 * i + 1] - self.offsets[2 * i] + 1, self.offsets[2 * i + 2] - self.offsets[2 * i + 1] + 1)
            for i in range(len(encoded) // 2)
        ]

    def __getitem__(self, rows):
        text = lambda i: self.ids[self.offsets[i] : self.offsets[i + 1]]
        return collate([text(2 * i) for i in rows], [text(2 * i + 1) for i in rows])


def load_tokenizer(path):
    tokenizer = Tokenizer.from_file(path)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.encode_special_tokens = True
    return tokenizer


def encode_batch(tokenizer, texts):
    """Returns ids without special tokens; skips offsets if this version of `tokenizers` can."""
    encode = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)
    return [encoding.ids for encoding in encode(texts, add_special_tokens=False)]


def collate(sources, targets):
    pad = lambda length: (length + MULTIPLE) // MULTIPLE * MULTIPLE  # one more for eos or bos
    source = np.full((len(sources), pad(max(map(len, sources)))), PAD, dtype=np.int32)
    target = np.full((len(targets), pad(max(map(len, targets)))), PAD, dtype=np.int32)
    labels = target.copy()
    for i, (s, t) in enumerate(zip(sources, targets)):
        source[i, : len(s)], source[i, len(s)] = s, EOS
        target[i, 0], target[i, 1 : len(t) + 1] = BOS, t
        labels[i, : len(t)], labels[i, len(t)] = t, EOS
    source_lengths = np.array([len(s) + 1 for s in sources], dtype=np.int32)
    target_lengths = np.array([len(t) + 1 for t in targets], dtype=np.int32)
    parts = (source, target, labels, source_lengths, target_lengths)
    return [torch.from_numpy(part) for part in parts] + [int(source_lengths.sum() + target_lengths.sum())]


def plan(lengths, budget, seed):
    """Returns full batches of rows with similar lengths, in random order."""
    order = list(range(len(lengths)))
    random.Random(seed).shuffle(order)
    padded = lambda i: (max(lengths[i]) + MULTIPLE - 1) // MULTIPLE * MULTIPLE
    order.sort(key=padded)
    batches, batch, longest = [], [], 0
    for i in order:
        if batch and max(longest, padded(i)) * (len(batch) + 1) > budget:
            batches.append(batch)
            batch, longest = [], 0
        batch.append(i)
        longest = max(longest, padded(i))
    batches.append(batch)
    random.Random(seed + 1).shuffle(batches)
    return batches


class Endless(torch.utils.data.Sampler):
    """Yields the batches of one epoch after the other."""

    def __init__(self, lengths, budget):
        self.lengths, self.budget = lengths, budget

    def __iter__(self):
        epoch = 0
        while True:
            yield from plan(self.lengths, self.budget, epoch)
            epoch += 1


def tokens_per_second(dataset, lengths, budget, workers, secs):
    prefetch = {"prefetch_factor": 4, "persistent_workers": True} if workers else {}
    sampler = Endless(lengths, budget)
    batches = iter(DataLoader(dataset, batch_size=None, sampler=sampler, num_workers=workers, **prefetch))
    next(batches)
    for limit in (1.0, secs):
        start, tokens = time.perf_counter(), 0
        while time.perf_counter() - start < limit:
            tokens += next(batches)[-1]
        rate = tokens / (time.perf_counter() - start)
    return rate


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("corpus")
    parser.add_argument("folder")
    parser.add_argument("--workers", default="0,1,2,4,8")
    parser.add_argument("--secs", type=float, default=10)
    parser.add_argument("--tokens", type=int, default=16_384)
    parser.add_argument("--cached", action="store_true")
    args = parser.parse_args()
    tokenizer = os.path.join(args.folder, "tokenizer.json")
    torch.set_num_threads(1)

    rows = Rows(args.corpus, tokenizer)
    # Bytes per token, estimated from a sample: the plan is made before tokenizing.
    probe = load_tokenizer(tokenizer)
    with open(args.corpus, encoding="utf-8") as file:
        sample = [json.loads(line)["src"] for line, _ in zip(file, range(2000))]
    ratio = sum(len(text.encode()) for text in sample) / sum(map(len, encode_batch(probe, sample)))
    estimated = [(int(s / ratio) + 2, int(t / ratio) + 2) for s, t in rows.lengths]
    estimated = [(min(s, MAX_LEN), min(t, MAX_LEN)) for s, t in estimated]
    cached = Cached(rows, tokenizer) if args.cached else None
    print(f"PyTorch {torch.__version__}, {os.cpu_count()} cores, batches of {args.tokens} tokens", flush=True)
    print(f"{'workers':>8} {'direct tokens/s':>16}" + (f" {'cached tokens/s':>16}" if cached else ""), flush=True)
    for workers in map(int, args.workers.split(",")):
        direct = tokens_per_second(rows, estimated, args.tokens, workers, args.secs)
        line = f"{workers:>8} {direct / 1e6:>14.2f} M"
        if cached:
            line += f" {tokens_per_second(cached, cached.lengths, args.tokens, workers, args.secs) / 1e6:>14.2f} M"
        print(line, flush=True)


if __name__ == "__main__":
    main()
