"""Times the hot operators of a training step alone, in bf16 on one GPU: `operators.py`, without arguments.

Prints `NAME TIME ms` per operator, followed by the rate of products and attention; README.md lists the names, and
`kiln bench --operators --peer` times its own operators at the same shapes.
"""

import time

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = True

DEVICE = "cuda"
DTYPE = torch.bfloat16

# M, K, N of `[M, K] @ [K, N]`.
PRODUCTS = [
    (8192, 8192, 8192),
    (32768, 768, 2304),
    (32768, 768, 3072),
    (32768, 3072, 768),
    (16384, 768, 50304),
    (32768, 512, 2048),
    (8192, 1024, 4096),
]
# Batch, heads, length, dimensions of a head.
ATTENTION = (16, 12, 1024, 64)


def timed(call, warm_up=3, repeats=5, calls=5):
    """Seconds per call: the median over `repeats` of `calls` calls in a row, with a device sync at the end of each."""
    for _ in range(warm_up):
        call()
    torch.cuda.synchronize()

    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - started) / calls)
    return sorted(times)[len(times) // 2]


def normal(*shape, **options):
    return torch.randn(*shape, device=DEVICE, dtype=DTYPE, **options)


def report(name, seconds, flops):
    print(f"{name} {seconds * 1e3:.3f} ms {flops / seconds / 1e12:.0f} TFLOP/s")


def time_product(m, k, n):
    """A forward pass (nn), a product with a transposed weight (nt) and the gradient of the weight (tn)."""
    flops = 2 * m * k * n
    x, w = normal(m, k), normal(k, n)
    report(f"matmul nn {m}x{k}x{n}", timed(lambda: x @ w), flops)

    transposed = normal(n, k)
    report(f"matmul nt {m}x{k}x{n}", timed(lambda: x @ transposed.T), flops)

    # The head's weight gradient is left out: no step computes it at once.
    if m != 16384:
        gradient = normal(m, n)
        report(f"matmul tn {k}x{m}x{n}", timed(lambda: x.T @ gradient), flops)


def time_attention(causal):
    """SDPA forward, and forward with backward: two products, and seven."""
    b, h, t, e = ATTENTION
    q, k, v = (normal(*ATTENTION, requires_grad=True) for _ in range(3))
    gradient = normal(*ATTENTION)
    flops = 4 * b * h * t * t * e * (0.5 if causal else 1)

    def attend():
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    with torch.no_grad():
        seconds = timed(attend)
    report(f"attention fwd causal={causal}", seconds, flops)

    seconds = timed(lambda: torch.autograd.grad(attend(), (q, k, v), gradient))
    report(f"attention fwd+bwd causal={causal}", seconds, 3.5 * flops)


def time_layer_norm():
    x = normal(32768, 768, requires_grad=True)
    norm = nn.LayerNorm(768).to(DEVICE, DTYPE)
    gradient = torch.randn_like(x)
    seconds = timed(lambda: torch.autograd.grad(norm(x), (x, norm.weight, norm.bias), gradient))
    print(f"layer_norm fwd+bwd 32768x768 {seconds * 1e3:.3f} ms")


def time_cross_entropy():
    logits = normal(16384, 50304, requires_grad=True)
    labels = torch.randint(0, 50257, (16384,), device=DEVICE)
    loss = torch.compile(lambda logits: F.cross_entropy(logits.float(), labels))
    seconds = timed(lambda: torch.autograd.grad(loss(logits), logits))
    print(f"xent fwd+bwd 16384x50304 compiled {seconds * 1e3:.3f} ms")


def main():
    for product in PRODUCTS:
        time_product(*product)
    for causal in (True, False):
        time_attention(causal)
    time_layer_norm()
    time_cross_entropy()


if __name__ == "__main__":
    main()
