"""Times training steps of Kiln's workloads in PyTorch, eager and through `torch.compile`.

usage: train_step.py [gpt] [mt] [ops] [--batch 16]
       train_step.py model WORKLOAD.json

gpt    GPT-2 124M on `--batch` full rows of 1,024 tokens
mt     Transformer base (6 + 6 layers, joint vocabulary of 32,000, dropout 0.1, label smoothing 0.1) on 400 pairs of
       48 to 64 tokens, padded to 64, with a key padding mask
ops    the operators of `operators.py`
model  any model, built by `transformer.py`; README.md describes the file, which `kiln bench --peer` writes

Steps run as PyTorch users run them: bf16 autocast over f32 weights, SDPA, fused AdamW, gradients clipped at 1.0, and no
loss is read before the end. A workload in f32 has no autocast, and TF32 only if it asks for it. Prints one line per measurement; README.md describes the lines, which `kiln bench --peer`
reads.
"""

import argparse
import contextlib
import json
import math
import resource
import sys
import time

import torch

from models import GPT, Translator
from transformer import Transformer

DEVICE = "cuda"
# Dense bf16 peak of an H100 or H200, in operations per second.
PEAK_FLOPS = 989e12
STEPS, REPEATS = 30, 3

GPT_LEN = 1024
PAIRS, PAIR_LEN, PAIR_BATCHES = 400, 64, 4
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def gpt_batches(batch_size):
    """Two batches of uniform random tokens and labels, each `[batch_size, 1024]`."""
    shape = (batch_size, GPT_LEN)
    return [
        (torch.randint(0, 50257, shape, device=DEVICE), torch.randint(0, 50257, shape, device=DEVICE))
        for _ in range(2)
    ]


def padded_rows(batch_size, length, vocab_size=32000, shortest=0.75, device=DEVICE):
    """Random tokens `[batch_size, length]`: rows of `shortest` times `length` to all of it, padded with 0."""
    tokens = torch.randint(4, vocab_size, (batch_size, length), device=device)
    lengths = torch.randint(int(length * shortest), length + 1, (batch_size, 1), device=device)
    lengths[0] = length
    return torch.where(torch.arange(length, device=device) < lengths, tokens, 0)


def pair_batches():
    """Four batches of source, target and labels, and the mean number of non-padding tokens in a batch."""
    batches, tokens = [], 0
    for _ in range(PAIR_BATCHES):
        source, target = padded_rows(PAIRS, PAIR_LEN), padded_rows(PAIRS, PAIR_LEN)
        labels = torch.cat([target[:, 1:], torch.zeros_like(target[:, :1])], 1)
        batches.append((source, target, labels))
        tokens += (source != 0).sum().item() + (target != 0).sum().item()
    return batches, tokens / PAIR_BATCHES


def model_batches(workload):
    """Batches of a workload, and the mean number of non-padding tokens in one."""
    model, shape, device = workload["model"], (workload["rows"], workload["len"]), workload["device"]
    kind, batches, tokens = model["architecture"], [], 0

    for _ in range(workload["n_batches"]):
        if kind == "encoder_decoder":
            sizes = model["source_vocab_size"], model["target_vocab_size"]
            source, target = (padded_rows(*shape, size, workload["shortest"], device) for size in sizes)
            labels = torch.cat([target[:, 1:], torch.zeros_like(target[:, :1])], 1)
            batches.append((source, target, labels))
            tokens += (source != 0).sum().item() + (target != 0).sum().item()
        else:
            size = model["target_vocab_size"] if kind == "decoder_only" else model["source_vocab_size"]
            ids, labels = torch.randint(0, size, (2, *shape), device=device)
            if kind == "encoder_only":
                labels = torch.where(torch.rand(shape, device=device) < 0.15, labels, -1)
            batches.append((ids, labels))
            tokens += ids.numel()
    return batches, tokens / len(batches)


def time_steps(name, model, batches, tokens, flops, compiled, workload=None):
    """Trains `model` on `batches` in turn and prints the median over repeats of the mean time of a step.

    `tokens` and `flops` are the non-padding tokens and the floating-point operations of a step. A `workload` has its own
    device, precision and numbers of steps.
    """
    given = workload or {}
    device, dtype = given.get("device", DEVICE), DTYPES[given.get("dtype", "bf16")]
    steps, repeats = given.get("steps", STEPS), given.get("repeats", REPEATS)
    peak_flops = given.get("peak_flops", PEAK_FLOPS) or math.nan
    torch.set_float32_matmul_precision("high" if given.get("f32_products") == "tf32" else "highest")

    model = model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, weight_decay=0.1, fused=True)
    forward = torch.compile(model) if compiled else model
    precision = contextlib.nullcontext() if dtype == torch.float32 else torch.autocast(device, dtype)
    scaler = torch.amp.GradScaler(device, enabled=dtype == torch.float16)

    def step(i):
        with precision:
            loss = forward(*batches[i % len(batches)])
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return loss

    def wait():
        if device == "cuda":
            torch.cuda.synchronize()

    # Warm up: kernels are compiled, and every batch has been seen.
    started = time.perf_counter()
    for i in range(2 * len(batches) + 4):
        loss = step(i)
    wait()
    warm_up = time.perf_counter() - started
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()

    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        for i in range(steps):
            loss = step(i)
        wait()
        times.append((time.perf_counter() - started) / steps)
    seconds = sorted(times)[len(times) // 2]

    # On the CPU, all memory that the process has taken.
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else resident
    print(
        f"{name} compile={compiled}: {seconds * 1e3:.2f} ms/step {tokens / seconds:.0f} effective tok/s "
        f"MFU {flops / seconds / peak_flops * 100:.1f}% peak {peak / 2**30:.2f} GiB "
        f"warmup {warm_up:.1f}s loss {loss.item():.3f}",
        flush=True,
    )


def n_parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def time_gpt(batch_size):
    for compiled in (False, True):
        torch.manual_seed(0)
        model = GPT()
        tokens = batch_size * GPT_LEN
        # 6 per parameter and token; causal attention adds 6 T D per token and layer.
        flops = (6 * n_parameters(model) + 6 * 12 * GPT_LEN * 768) * tokens
        time_steps(f"gpt124m B{batch_size} T{GPT_LEN}", model, gpt_batches(batch_size), tokens, flops, compiled)


def time_mt():
    for compiled in (False, True):
        torch.manual_seed(0)
        model = Translator()
        batches, tokens = pair_batches()
        flops = 6 * n_parameters(model) * PAIRS * PAIR_LEN
        time_steps("mt-base 25.6k+25.6k padded tokens", model, batches, tokens, flops, compiled)


def time_model(path):
    with open(path, encoding="utf-8") as file:
        workload = json.load(file)
    is_pairs = workload["model"]["architecture"] == "encoder_decoder"
    ignored = workload["model"]["pad_id"] if is_pairs else -1

    for compiled in (False, True):
        torch.manual_seed(0)
        checkpointing = workload.get("activation_checkpointing", "off")
        model = Transformer(
            workload["model"], workload["label_smoothing"], ignored, checkpointing, workload.get("max_labels")
        )
        assert n_parameters(model) == workload["parameters"], f"{n_parameters(model)} parameters: another network"
        model.prepare(workload["len"], workload["device"])
        batches, tokens = model_batches(workload)
        try:
            time_steps(workload["name"], model, batches, tokens, workload["flops"], compiled, workload)
        except torch.OutOfMemoryError:
            # Eager, some models keep all scores of attention. The compiled one may still fit.
            if compiled:
                raise
            print(f"{workload['name']} compile=False: does not fit into memory", file=sys.stderr, flush=True)
        del model, batches
        if workload["device"] == "cuda":
            torch.cuda.empty_cache()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["ops", "gpt", "mt"], help="gpt, mt, ops, or model WORKLOAD.json")
    parser.add_argument("--batch", type=int, default=16, help="rows of a GPT-2 batch (default: 16)")
    arguments = parser.parse_args()

    if arguments.what[0] == "model":
        time_model(arguments.what[1])
        return
    if "ops" in arguments.what:
        import operators

        operators.main()
    if "gpt" in arguments.what:
        time_gpt(arguments.batch)
    if "mt" in arguments.what:
        time_mt()


if __name__ == "__main__":
    main()
