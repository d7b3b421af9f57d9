"""Times the error detector of `examples/error_detector` in PyTorch: BERT's encoder with a head for detection, a head for candidates, and
the gated sum of both with the logits.

usage: error_detector.py [--rows 128] [--len 128] [--layers 12] [--width 768] [--vocab 30522] [--device cuda]

Prints, eager and through `torch.compile`: inference of the encoder, training of the encoder with its head for all tokens, and training of
the whole model, in f32, bf16 and f16. The detector is the network of `model.rs`, with random weights and tokens. A last row writes the gated
scores into a zeroed tensor of all logits, as the first version of the user did.
"""

import argparse
import contextlib
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

from transformer import Transformer

CANDIDATES = 4
WRONG_WEIGHT = 3.0
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
STEPS, REPEATS = 20, 3


def encoder_config(arguments):
    """BERT of `--layers` and `--width`, in the words of Kiln's `config.json`."""
    return {
        "architecture": "encoder_only",
        "d_model": arguments.width,
        "d_ff": 4 * arguments.width,
        "n_heads": arguments.width // 64,
        "n_kv_heads": 0,
        "n_encoder_layers": arguments.layers,
        "source_vocab_size": arguments.vocab,
        "target_vocab_size": arguments.vocab,
        "max_positions": 512,
        "positions": "learned",
        "n_token_types": 2,
        "norm": "post",
        "norm_kind": "layer_norm",
        "norm_eps": 1e-12,
        "embedding_norm": True,
        "scale_embedding": False,
        "activation": "gelu",
        "bias": True,
        "dropout": 0.1,
        "activation_dropout": 0.0,
        "attention_dropout": 0.1,
        "tie_embeddings": "output",
        "pad_id": 0,
    }


class ErrorDetector(nn.Module):
    """The three heads. Legend of shapes: M tokens, D hidden features, V vocabulary, K candidates."""

    def __init__(self, config, dense):
        super().__init__()
        d, v = config["d_model"], config["source_vocab_size"]
        self.encoder = Transformer(config)
        self.dense = dense
        self.detector = nn.Linear(d, 1)
        self.query = nn.Linear(d, d, bias=False)
        self.keep = nn.Parameter(torch.full((1,), 4.0))
        places = torch.arange(v)[:, None]
        self.register_buffer("confusions", (places + torch.tensor([1, -1, 2, -2])) % v)

    def forward(self, ids, labels):
        encoder = self.encoder
        hidden = encoder.encoder(ids).flatten(0, 1)
        logits = encoder.out(encoder.head_norm(encoder.head_activation(encoder.head_in(hidden))))
        ids, labels = ids.flatten(), labels.flatten()

        candidates = self.confusions[ids]
        vectors = F.embedding(candidates, encoder.out.weight)
        scores = (self.query(hidden)[:, None] * vectors).float().sum(-1)
        wrong = self.detector(hidden).float()
        gate = torch.sigmoid(wrong)
        values = torch.cat([(1 - gate) * self.keep, gate * scores], 1)
        columns = torch.cat([ids[:, None], candidates], 1)
        if self.dense:
            added = torch.zeros(logits.shape, dtype=torch.float32, device=logits.device)
            logits = logits + added.scatter_add(1, columns, values)
        else:
            logits = logits.scatter_add(1, columns, values.to(logits.dtype))

        is_wrong = (ids != labels).float()
        detection = F.binary_cross_entropy_with_logits(wrong[:, 0], is_wrong, reduction="none")
        detection = (detection * (is_wrong * (WRONG_WEIGHT - 1) + 1)).mean()
        return F.cross_entropy(logits.float(), labels) + detection


def timed(run, device, samples):
    """Prints the median over repeats of the mean time of a run, and returns it in samples per second."""

    def wait():
        if device == "cuda":
            torch.cuda.synchronize()

    for _ in range(6):
        run()
    wait()
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        for _ in range(STEPS):
            run()
        wait()
        times.append((time.perf_counter() - started) / STEPS)
    seconds = sorted(times)[REPEATS // 2]
    return seconds, samples / seconds


def measure(what, arguments, dtype, compiled):
    torch.manual_seed(0)
    device, shape = arguments.device, (arguments.rows, arguments.len)
    config = encoder_config(arguments)
    if what.startswith("whole"):
        model = ErrorDetector(config, dense=what == "whole, zeroed logits")
    else:
        model = Transformer(config)
    model = model.to(device)
    (model.encoder if what.startswith("whole") else model).prepare(arguments.len, device)
    ids = torch.randint(0, arguments.vocab, shape, device=device)
    labels = torch.where(torch.rand(shape, device=device) < 0.125, (ids + 1) % arguments.vocab, ids)
    precision = contextlib.nullcontext() if dtype == "f32" else torch.autocast(device, DTYPES[dtype])
    torch.set_float32_matmul_precision("high")

    if what == "inference":
        read = torch.compile(model.encoder) if compiled else model.encoder
        model.eval()

        def run():
            with torch.no_grad(), precision:
                return read(ids)

    else:
        forward = torch.compile(model) if compiled else model
        optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=device == "cuda")
        scaler = torch.amp.GradScaler(device, enabled=dtype == "f16")

        def run():
            with precision:
                loss = forward(ids, labels)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            return loss

    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds, rate = timed(run, device, arguments.rows)
    peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else float("nan")
    print(f"{what}, {dtype}, compile={compiled}: {seconds * 1e3:.2f} ms {rate:.1f} samples/s peak {peak:.2f} GiB", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--len", type=int, default=128)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--vocab", type=int, default=30522)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtypes", nargs="+", default=["f32", "bf16", "f16"])
    arguments = parser.parse_args()
    for compiled in (False, True):
        for what in ("inference", "encoder", "whole", "whole, zeroed logits"):
            for dtype in arguments.dtypes:
                if what != "whole, zeroed logits" or dtype == "bf16":
                    measure(what, arguments, dtype, compiled)
                    if arguments.device == "cuda":
                        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
