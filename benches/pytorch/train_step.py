"""Times training steps of Kiln's headline workloads in PyTorch, eager and through `torch.compile`, on one GPU.

usage: train_step.py [gpt] [mt] [ops] [--batch 16]

gpt  GPT-2 124M on `--batch` full rows of 1,024 tokens
mt   Transformer base (6 + 6 layers, joint vocabulary of 32,000, dropout 0.1, label smoothing 0.1) on 400 pairs of
     48 to 64 tokens, padded to 64, with a key padding mask
ops  the operators of `operators.py`

Steps run as PyTorch users run them: bf16 autocast over f32 weights, SDPA, fused AdamW, gradients clipped at 1.0, and no
loss is read before the end. Prints one line per measurement; README.md describes the lines, which `kiln bench --peer`
reads.
"""

import argparse
import time

import torch

from models import GPT, Translator

DEVICE = "cuda"
# Dense bf16 peak of an H100 or H200, in operations per second.
PEAK_FLOPS = 989e12
STEPS, REPEATS = 30, 3

GPT_LEN = 1024
PAIRS, PAIR_LEN, PAIR_BATCHES = 400, 64, 4


def gpt_batches(batch_size):
    """Two batches of uniform random tokens and labels, each `[batch_size, 1024]`."""
    shape = (batch_size, GPT_LEN)
    return [
        (torch.randint(0, 50257, shape, device=DEVICE), torch.randint(0, 50257, shape, device=DEVICE))
        for _ in range(2)
    ]


def padded_rows(batch_size, length):
    """Random tokens `[batch_size, length]`: rows of three quarters of `length` to all of it, padded with 0."""
    tokens = torch.randint(4, 32000, (batch_size, length), device=DEVICE)
    lengths = torch.randint(length * 3 // 4, length + 1, (batch_size, 1), device=DEVICE)
    lengths[0] = length
    return torch.where(torch.arange(length, device=DEVICE) < lengths, tokens, 0)


def pair_batches():
    """Four batches of source, target and labels, and the mean number of non-padding tokens in a batch."""
    batches, tokens = [], 0
    for _ in range(PAIR_BATCHES):
        source, target = padded_rows(PAIRS, PAIR_LEN), padded_rows(PAIRS, PAIR_LEN)
        labels = torch.cat([target[:, 1:], torch.zeros_like(target[:, :1])], 1)
        batches.append((source, target, labels))
        tokens += (source != 0).sum().item() + (target != 0).sum().item()
    return batches, tokens / PAIR_BATCHES


def time_steps(name, model, batches, tokens, flops, compiled):
    """Trains `model` on `batches` in turn and prints the median over `REPEATS` of the mean time of `STEPS` steps.

    `tokens` and `flops` are the non-padding tokens and the floating-point operations of a step.
    """
    model = model.to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, weight_decay=0.1, fused=True)
    forward = torch.compile(model) if compiled else model

    def step(i):
        with torch.autocast("cuda", torch.bfloat16):
            loss = forward(*batches[i % len(batches)])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    # Warm up: kernels are compiled, and every batch has been seen.
    started = time.perf_counter()
    for i in range(2 * len(batches) + 4):
        loss = step(i)
    torch.cuda.synchronize()
    warm_up = time.perf_counter() - started
    torch.cuda.reset_peak_memory_stats()

    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        for i in range(STEPS):
            loss = step(i)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - started) / STEPS)
    seconds = sorted(times)[REPEATS // 2]

    print(
        f"{name} compile={compiled}: {seconds * 1e3:.2f} ms/step {tokens / seconds:.0f} effective tok/s "
        f"MFU {flops / seconds / PEAK_FLOPS * 100:.1f}% peak {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB "
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["ops", "gpt", "mt"], help="gpt, mt, ops (default: all three)")
    parser.add_argument("--batch", type=int, default=16, help="rows of a GPT-2 batch (default: 16)")
    arguments = parser.parse_args()

    if "ops" in arguments.what:
        import operators

        operators.main()
    if "gpt" in arguments.what:
        time_gpt(arguments.batch)
    if "mt" in arguments.what:
        time_mt()


if __name__ == "__main__":
    main()
