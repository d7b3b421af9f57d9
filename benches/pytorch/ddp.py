"""Times training steps and all-reduce on the GPUs of one machine with PyTorch's DistributedDataParallel.

usage: torchrun --nproc_per_node N ddp.py [bw] [gpt] [gpt64] [mt]

bw         all-reduce of 4, 40, 200 and 498 MiB of f32: time and bus bandwidth
gpt gpt64  GPT-2 124M, 16 or 64 x 1,024 tokens per GPU
mt         Transformer base, 400 pairs per GPU

With INNER=1 in the environment the model is compiled inside DDP; otherwise the
DDP wrapper is compiled. ACCUMULATE=N adds up the gradients of N batches under
no_sync before they are exchanged. Rank 0 prints one line per measurement.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from models import GPT, Translator
from train_step import gpt_batches, pair_batches

RANK = int(os.environ.get("LOCAL_RANK", "0"))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))
COMPILE_INSIDE = bool(os.environ.get("INNER"))
ACCUMULATE = int(os.environ.get("ACCUMULATE", "1"))


def say(line):
    if RANK == 0:
        print(line, flush=True)


def time_all_reduce():
    for mebibytes in (4, 40, 200, 498):
        x = torch.ones(mebibytes * 1024 * 1024 // 4, device="cuda")
        for _ in range(5):
            dist.all_reduce(x)
        torch.cuda.synchronize()
        dist.barrier()

        started = time.perf_counter()
        for _ in range(20):
            dist.all_reduce(x)
        torch.cuda.synchronize()
        seconds = (time.perf_counter() - started) / 20

        # A ring moves each byte 2 (n - 1) / n times over a rank's links.
        bus = mebibytes * 1.048576e6 / seconds * 2 * (WORLD_SIZE - 1) / WORLD_SIZE / 1e9
        say(f"all_reduce {mebibytes} MiB f32 x{WORLD_SIZE}: {seconds * 1e3:.3f} ms, bus {bus:.1f} GB/s")


def time_steps(name, make, batches, tokens, steps):
    """The second fastest of four repeats of `steps` steps; `tokens` are the non-padding tokens of a rank's step."""
    torch.manual_seed(0)
    model = make().cuda()
    model = torch.compile(model) if COMPILE_INSIDE else model
    # A static graph would expect an exchange in each backward pass.
    static = ACCUMULATE == 1
    replicas = DistributedDataParallel(model, device_ids=[RANK], gradient_as_bucket_view=True, static_graph=static)
    forward = replicas if COMPILE_INSIDE else torch.compile(replicas)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, weight_decay=0.1, fused=True)

    def add_gradients(batch):
        with torch.autocast("cuda", torch.bfloat16):
            loss = forward(*batch) / ACCUMULATE
        loss.backward()

    def step(i):
        taken = [batches[(i * ACCUMULATE + j) % len(batches)] for j in range(ACCUMULATE)]
        with replicas.no_sync():
            for batch in taken[:-1]:
                add_gradients(batch)
        add_gradients(taken[-1])
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for i in range(12):
        step(i)

    times = []
    for _ in range(4):
        torch.cuda.synchronize()
        dist.barrier()
        started = time.perf_counter()
        for i in range(steps):
            step(i)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - started) / steps)
    seconds = sorted(times)[1]

    say(
        f"DDP x{WORLD_SIZE} {name}: {seconds * 1e3:.2f} ms/step, "
        f"{WORLD_SIZE * ACCUMULATE * tokens / seconds:.0f} tok/s in all, "
        f"peak {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB"
    )


def main():
    known = {"bw", "gpt", "gpt64", "mt"}
    if not sys.argv[1:] or not known.issuperset(sys.argv[1:]):
        sys.exit(__doc__)
    if "LOCAL_RANK" not in os.environ:
        sys.exit("ddp.py is started by torchrun: torchrun --nproc_per_node N ddp.py bw gpt mt")

    torch.cuda.set_device(RANK)
    dist.init_process_group("nccl", device_id=torch.device("cuda", RANK))

    for what in sys.argv[1:]:
        if what == "bw":
            time_all_reduce()
        if what in ("gpt", "gpt64"):
            batch_size = 16 if what == "gpt" else 64
            time_steps(what, GPT, gpt_batches(batch_size), batch_size * 1024, 20 if what == "gpt" else 8)
        if what == "mt":
            batches, tokens = pair_batches()
            time_steps("mt", Translator, batches, tokens, 20)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
