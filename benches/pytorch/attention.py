"""Times causal attention by PyTorch's flash back end in bf16, without arguments.

The shapes are those of the test `times` of Kiln's attention (`KILN_TIMES=attention`). Prints the times of forward and
of backward. `--any` lets PyTorch choose the back end, `--each` times every back end that takes the shape.
"""

import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from operators import normal, timed

# Batch, heads, length, dimensions of a head, whether the mask is causal.
SHAPES = [
    (16, 12, 1024, 64, True),
    (16, 12, 1024, 64, False),
    (400, 8, 64, 64, False),
    (8, 16, 2048, 128, True),
    (16, 24, 1024, 32, True),
    (16, 10, 1024, 80, True),
    (16, 8, 1024, 96, True),
    (8, 10, 2048, 192, True),
    (8, 8, 2048, 256, True),
    (8, 10, 2048, 192, False),
    (8, 8, 2048, 256, False),
]

FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]


def time_shape(b, h, t, e, causal):
    q, k, v = (normal(b, h, t, e, requires_grad=True) for _ in range(3))
    gradient = normal(b, h, t, e)
    flops = 4 * b * h * t * t * e * (0.5 if causal else 1)

    def attend():
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    with torch.no_grad():
        forward = timed(attend, calls=20)
    out = attend()
    backward = timed(lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True), calls=20)
    name = "causal" if causal else "full"
    print(
        f"{name} {b} x {h} x {t} x {e}: forward {forward * 1e3:.3f} ms ({flops / forward / 1e12:.0f} TFLOP/s), "
        f"backward {backward * 1e3:.3f} ms ({2.5 * flops / backward / 1e12:.0f})"
    )


def time_back_end(back_end, shape):
    print(f"{back_end.name.lower()}: ", end="")
    try:
        with sdpa_kernel([back_end]):
            time_shape(*shape)
    except RuntimeError as error:
        print(f"{shape}: {str(error).splitlines()[0]}")


def main():
    back_ends = FUSED if "--each" in sys.argv else [SDPBackend.FLASH_ATTENTION]
    for shape in SHAPES:
        if "--any" in sys.argv:
            time_shape(*shape)
            continue
        for back_end in back_ends:
            time_back_end(back_end, shape)


if __name__ == "__main__":
    main()
