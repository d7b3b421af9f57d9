"""Trains a Transformer base translator in eager PyTorch on one GPU and scores it: the baseline of Kiln's BLEU figure.

usage: translate.py TRAIN.jsonl[.gz] DEV TEST [--minutes 4] [--epochs 20] [--lr 7e-4] [--drop 0.2] [--tokens 16384]

Rows are JSON objects with `src` and `trg`; scripts/corpora/parallel.sh makes them. A joint BPE vocabulary of 16,000 is
trained first. Training: pre-norm, 6 + 6 layers, AdamW (0.9, 0.98), 800 steps of warm-up, cosine decay, label smoothing
0.1, clipping at 1.0, bf16 autocast. The test set is decoded greedily, without a cache, and scored by sacreBLEU.

The figure in benches/results was made with
    translate.py en-it.train.jsonl en-it.dev.jsonl en-it.test.jsonl --minutes 5 --epochs 22
"""

import argparse
import gzip
import json
import math
import random
import time

import sacrebleu
import torch
import torch.nn as nn
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models as tokenizer_models, normalizers, pre_tokenizers, trainers

from models import Block

DEVICE = "cuda"
PAD, BOS, EOS, UNK = range(4)
VOCABULARY = 16000
# Tokens of a side, without BOS and EOS; longer texts are cut.
MAX_TOKENS = 126
WARM_UP_STEPS = 800
DECODED_ROWS = 250


class SinusoidalTranslator(nn.Module):
    """Transformer base with sinusoidal positions; the table starts with a standard deviation of 1 / sqrt(D)."""

    def __init__(self, vocab_size, n_layers=6, d_model=512, n_heads=8, d_ff=2048, dropout=0.1):
        super().__init__()
        self.tokens, self.dropout, self.d_model = nn.Embedding(vocab_size, d_model), dropout, d_model
        nn.init.normal_(self.tokens.weight, std=d_model**-0.5)

        positions = torch.zeros(512, d_model)
        place = torch.arange(512)[:, None]
        frequency = torch.exp(torch.arange(0, d_model, 2) * (-math.log(1e4) / d_model))
        positions[:, 0::2] = torch.sin(place * frequency)
        positions[:, 1::2] = torch.cos(place * frequency)
        self.register_buffer("positions", positions)

        self.encoder = nn.ModuleList(Block(d_model, n_heads, d_ff, dropout) for _ in range(n_layers))
        self.decoder = nn.ModuleList(Block(d_model, n_heads, d_ff, dropout, True) for _ in range(n_layers))
        self.norm_encoder, self.norm_decoder = nn.LayerNorm(d_model), nn.LayerNorm(d_model)

    def embed(self, x):
        x = self.tokens(x) * math.sqrt(self.d_model) + self.positions[: x.shape[1]]
        return F.dropout(x, self.dropout, self.training)

    def encode(self, source):
        """`[B, S]` -> memory `[B, S, D]` and its mask."""
        mask = (source != PAD)[:, None, None, :]
        z = self.embed(source)
        for block in self.encoder:
            z = block(z, mask=mask)
        return self.norm_encoder(z), mask

    def decode(self, target, memory, mask):
        """`[B, T]` -> logits `[B, T, V]`."""
        o = self.embed(target)
        for block in self.decoder:
            o = block(o, causal=True, memory=memory, memory_mask=mask)
        return F.linear(self.norm_decoder(o), self.tokens.weight)


def read_rows(path):
    file = gzip.open(path, "rt") if path.endswith(".gz") else open(path)
    with file:
        return [json.loads(line) for line in file]


def train_tokenizer(rows):
    """A joint BPE vocabulary of both sides."""
    tokenizer = Tokenizer(tokenizer_models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = ["<pad>", "<s>", "</s>", "<unk>"]
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator((row[side] for row in rows for side in ("src", "trg")), trainer)
    return tokenizer


def encode_texts(tokenizer, texts):
    return [encoding.ids[:MAX_TOKENS] for encoding in tokenizer.encode_batch(texts)]


def pad(rows, length):
    return torch.tensor([row + [PAD] * (length - len(row)) for row in rows])


def plan_batches(sources, targets, max_tokens, shuffle):
    """Row numbers and padded length of each batch: rows of similar length together, at most `max_tokens` a side."""
    rows = [i for i in range(len(sources)) if sources[i] and targets[i]]
    if shuffle:
        random.shuffle(rows)
    rows.sort(key=lambda i: (max(len(sources[i]), len(targets[i])) + 9) // 8)

    batches, batch, longest = [], [], 0
    for i in rows:
        length = (max(len(sources[i]) + 1, len(targets[i]) + 1) + 7) // 8 * 8
        if batch and max(longest, length) * (len(batch) + 1) > max_tokens:
            batches.append((batch, longest))
            batch, longest = [], 0
        batch.append(i)
        longest = max(longest, length)
    batches.append((batch, longest))

    if shuffle:
        random.shuffle(batches)
    return batches


def train(model, sources, targets, arguments):
    """Trains until the epochs or the minutes are over; returns steps, seconds and non-padding tokens."""
    optimizer = torch.optim.AdamW(
        model.parameters(), arguments.lr, betas=(0.9, 0.98), weight_decay=0.01, fused=True
    )
    steps_per_epoch = len(plan_batches(sources, targets, arguments.tokens, False))
    total = int(steps_per_epoch * arguments.epochs)
    step, n_tokens, started = 0, 0, time.time()

    while True:
        for ids, length in plan_batches(sources, targets, arguments.tokens, True):
            cosine = 0.5 * (1 + math.cos(math.pi * min(1, step / total)))
            for group in optimizer.param_groups:
                group["lr"] = arguments.lr * min((step + 1) / WARM_UP_STEPS, cosine)

            source = pad([sources[i] + [EOS] for i in ids], length)
            target = pad([[BOS] + targets[i] for i in ids], length)
            labels = pad([targets[i] + [EOS] for i in ids], length)
            n_tokens += int((source > 0).sum() + (labels > 0).sum())
            source, target, labels = source.to(DEVICE), target.to(DEVICE), labels.to(DEVICE)

            with torch.autocast("cuda", torch.bfloat16):
                memory, mask = model.encode(source)
                logits = model.decode(target, memory, mask)
                loss = F.cross_entropy(
                    logits.view(-1, logits.shape[-1]).float(), labels.view(-1), ignore_index=PAD, label_smoothing=0.1
                )
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1

            seconds = time.time() - started
            if step % 500 == 0:
                rate = f"{n_tokens / seconds:.0f} tok/s {seconds:.0f}s"
                print(f"step {step}/{total} loss {loss.item():.3f} {rate}", flush=True)
            if step >= total or time.time() - started > arguments.minutes * 60:
                return step, time.time() - started, n_tokens


def translate(model, tokenizer, texts):
    """Greedy translations of `texts`, in batches of similar length; the decoder recomputes all positions each time."""
    out = [None] * len(texts)
    sources = encode_texts(tokenizer, texts)
    order = sorted(range(len(texts)), key=lambda i: len(sources[i]))

    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        for first in range(0, len(order), DECODED_ROWS):
            ids = order[first : first + DECODED_ROWS]
            length = max(len(sources[i]) + 1 for i in ids)
            memory, mask = model.encode(pad([sources[i] + [EOS] for i in ids], length).to(DEVICE))

            tokens = torch.full((len(ids), 1), BOS, device=DEVICE)
            ended = torch.zeros(len(ids), dtype=torch.bool, device=DEVICE)
            for _ in range(min(127, 2 * length + 10)):
                following = model.decode(tokens, memory, mask)[:, -1].argmax(-1).masked_fill(ended, PAD)
                tokens = torch.cat([tokens, following[:, None]], 1)
                ended |= following == EOS
                if ended.all():
                    break

            for i, row in zip(ids, tokens.tolist()):
                row = row[1:]
                row = row[: row.index(EOS)] if EOS in row else row
                out[i] = tokenizer.decode([token for token in row if token > UNK])
    return out


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", help="training rows")
    parser.add_argument("dev", help="validation rows: read, so that a missing file is noticed, and not used")
    parser.add_argument("test", help="rows to score")
    parser.add_argument("--minutes", type=float, default=4, help="ends training at the latest")
    parser.add_argument("--lr", type=float, default=7e-4, help="peak of the learning rate")
    parser.add_argument("--drop", type=float, default=0.2, help="dropout")
    parser.add_argument("--tokens", type=int, default=16384, help="padded tokens of a batch, per side")
    parser.add_argument("--epochs", type=float, default=20, help="length of the schedule")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    torch.manual_seed(0)
    random.seed(0)

    train_rows, _, test_rows = (read_rows(path) for path in (arguments.train, arguments.dev, arguments.test))
    started = time.time()
    tokenizer = train_tokenizer(train_rows)
    sources = encode_texts(tokenizer, [row["src"] for row in train_rows])
    targets = encode_texts(tokenizer, [row["trg"] for row in train_rows])
    n_tokens = sum(map(len, sources)) + sum(map(len, targets))
    print(f"tokenize {time.time() - started:.1f}s pairs {len(sources)} tokens {n_tokens}", flush=True)

    model = SinusoidalTranslator(tokenizer.get_vocab_size(), dropout=arguments.drop).to(DEVICE)
    steps, seconds, n_tokens = train(model, sources, targets, arguments)
    model.eval()

    started = time.time()
    hypotheses = translate(model, tokenizer, [row["src"] for row in test_rows])
    references = [[row["trg"] for row in test_rows]]
    bleu = sacrebleu.corpus_bleu(hypotheses, references)
    chrf = sacrebleu.corpus_chrf(hypotheses, references)
    print(
        f"test BLEU {bleu.score:.2f} chrF {chrf.score:.2f} after {steps} steps {seconds:.0f}s training "
        f"{n_tokens / seconds:.0f} effective tok/s; decode {time.time() - started:.0f}s"
    )
    for i in (0, 5, 9):
        row = test_rows[i]
        print("SRC", row["src"][:150], "\nHYP", hypotheses[i][:150], "\nREF", row["trg"][:150])


if __name__ == "__main__":
    main()
