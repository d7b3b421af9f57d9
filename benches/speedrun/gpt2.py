"""Trains GPT-2 124M in compiled PyTorch on the tokens that Kiln prepared: the peer of the speedrun.

usage: gpt2.py TRAIN.kiln DEV.kiln [--steps 900] [--rows 64] [--lr 1e-3] [--end-of-text 2]

The files are the token caches of `kiln prepare`. An end-of-text token separates documents. Rows of 1,024
tokens are cut from them and shuffled. Training is nanoGPT's: AdamW (0.9, 0.95), decay 0.1 on matrices, warm-up, cosine decay to a tenth, clipping at 1.0, bf16
autocast over f32 weights, fused AdamW, `torch.compile`, SDPA. No loss is read between validations. The clock excludes compilation and
validations, as Kiln's does.
"""

import argparse
import math
import os
import sys
import time

import numpy as np
import torch

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "pytorch"))
from models import GPT  # noqa: E402

LEN = 1024
HEADER = 512


def documents(path):
    """The tokens of a cache, and the offsets of its documents in them."""
    with open(path, "rb") as file:
        header = file.read(HEADER)
    assert header[:8] == b"KILNTOKS", f"{path} is not a token cache"
    width = int.from_bytes(header[12:16], "little")
    n_rows, n_tokens = (int.from_bytes(header[at : at + 8], "little") for at in (16, 24))
    tokens = np.memmap(path, {2: np.uint16, 4: np.uint32}[width], "r", HEADER, n_tokens)
    offsets = np.memmap(path, np.uint64, "r", HEADER + -(-n_tokens * width // 8) * 8, n_rows + 1)
    return tokens, offsets.astype(np.int64)


def rows(path, end_of_text, seed=None):
    """All documents as rows `[N, 1025]`: tokens and, one place on, their labels. With a seed, rows are shuffled."""
    tokens, offsets = documents(path)
    n_documents = len(offsets) - 1
    text = np.empty(len(tokens) + n_documents, np.int32)
    at = 0
    for i in range(n_documents):
        document = tokens[offsets[i] : offsets[i + 1]]
        text[at : at + len(document)] = document
        text[at + len(document)] = end_of_text
        at += len(document) + 1
    order = np.arange((len(text) - 1) // LEN)
    if seed is not None:
        np.random.default_rng(seed).shuffle(order)
    return torch.from_numpy(np.stack([text[i * LEN : i * LEN + LEN + 1] for i in order]))


def halves(batch):
    """The tokens and the labels of rows."""
    return batch[:, :-1].contiguous(), batch[:, 1:].contiguous()


def initialize(model):
    """GPT-2's: a deviation of 0.02, divided by the root of the residual branches at the ends of these."""
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            ends = name.endswith(("self_out.weight", "ff_out.weight"))
            torch.nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * len(model.blocks)) if ends else 0.02)
        elif name.endswith("bias"):
            torch.nn.init.zeros_(parameter)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train")
    parser.add_argument("dev")
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--warm-up", type=int, default=100)
    parser.add_argument("--validate-every", type=int, default=150)
    parser.add_argument("--end-of-text", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()

    torch.manual_seed(arguments.seed)
    train, dev = rows(arguments.train, arguments.end_of_text, arguments.seed), rows(arguments.dev, arguments.end_of_text)
    needed = arguments.steps * arguments.rows
    assert len(train) >= needed, f"{len(train)} rows of text for {needed}: no row may be seen twice"
    train, dev = train.pin_memory(), dev.cuda()

    model = GPT().cuda()
    initialize(model)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=arguments.lr, betas=(0.9, 0.95), eps=1e-8, fused=True)
    forward = torch.compile(model)

    def rate(step):
        if step < arguments.warm_up:
            return arguments.lr * (step + 1) / arguments.warm_up
        done = (step - arguments.warm_up) / max(1, arguments.steps - arguments.warm_up)
        return arguments.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))

    def take_step(step, batch):
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        with torch.autocast("cuda", torch.bfloat16):
            loss = forward(*halves(batch))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def validate():
        losses, n = 0.0, 0
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            for batch in dev.long().split(arguments.rows):
                if len(batch) == arguments.rows:
                    losses, n = losses + forward(*halves(batch)).item(), n + 1
        return losses / n

    # Compile before the clock starts, and forget what these steps did.
    started = time.perf_counter()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for step in range(3):
        take_step(step, train[: arguments.rows].cuda().long())
    validate()
    model.load_state_dict(before)
    optimizer.state.clear()
    print(f"compiled in {time.perf_counter() - started:.1f} s", flush=True)

    seconds = 0.0
    torch.cuda.synchronize()
    started = time.perf_counter()
    for step in range(arguments.steps):
        take_step(step, train[step * arguments.rows : (step + 1) * arguments.rows].cuda(non_blocking=True).long())
        if (step + 1) % arguments.validate_every == 0 or step + 1 == arguments.steps:
            torch.cuda.synchronize()
            seconds += time.perf_counter() - started
            print(f"step {step + 1} seconds {seconds:.1f} valid_loss {validate():.4f}", flush=True)
            torch.cuda.synchronize()
            started = time.perf_counter()


if __name__ == "__main__":
    main()
