"""Two CPU ranks over a slow link: speed and loss for several accumulations and intervals, and what Kiln recommends.

usage: slow_link.py KILN [--rate 100] [--steps 22] [--busy] [--loss-batches 0] [--out table.json]

KILN is the program. Rank 1 reaches rank 0 through a proxy in this process, which passes on RATE megabytes per second in each direction.
Both ranks compute with one thread. Times are between steps of `metrics.jsonl`, without the first three steps, of two runs of each kind in
turn; the fastest quarter of them counts, because other processes only add time. "Alone" are two runs of one rank at the same time without a link: twice one device on a
machine that both share.

For train.sync_every = 10, steps with and without an exchange are timed. Longer intervals follow from these two times, because twenty
steps have at most one exchange of theirs. With --busy, for a machine that is never idle, the table is composed of two parts: the processor
time of a step alone, which other processes hardly change, and the time of an exchange. With --loss-batches N, five settings train on N micro-batches per rank, and their validation loss is shown.
"""

import argparse
import glob
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ACCUMULATIONS = [1, 2, 4, 8, 16]
INTERVALS = [1, 10, 50, 100, 500]
LOSS_POINTS = [(1, 1), (4, 1), (16, 1), (1, 10), (1, 100)]
CHUNK = 128 << 10
CREDIT = 0.02  # seconds of a late wake-up that are made up for
WARM_UP = 3
TURNS = 2
BATCH_TOKENS = 128
SETTINGS = [
    "model.d_model=256", "model.n_heads=4", "model.d_ff=1024", "model.n_decoder_layers=4", "tokenizer.vocab_size=2000",
    f"loader.batch_tokens={BATCH_TOKENS}", "data.text.seq_len=64", "loader.num_workers=1", "train.log_every=1",
    "train.save_every=0", "train.validate_every=0", "model.dropout=0", "optim.warmup_steps=1",
]


def passes(source, target, rate):
    """Passes on what comes, at most `rate` bytes per second."""
    buffer = memoryview(bytearray(CHUNK))
    free_at = 0.0
    try:
        while n := source.recv_into(buffer):
            now = time.monotonic()
            free_at = max(free_at, now - CREDIT) + n / rate
            if free_at > now:
                time.sleep(free_at - now)
            target.sendall(buffer[:n])
    except OSError:
        pass
    try:
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def proxy(port, rate):
    """Listens, and connects each caller with `port` over a slow link. Returns the port to call."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            near, _ = listener.accept()
            try:
                far = socket.create_connection(("127.0.0.1", port))
            except OSError:
                near.close()  # rank 0 does not listen yet, and rank 1 tries again
                continue
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=passes, args=(source, target, rate), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    return listener.getsockname()[1]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def measured_rate(rate):
    """The rate of the proxy itself, in megabytes per second."""
    listener = socket.create_server(("127.0.0.1", 0))
    far = socket.create_connection(("127.0.0.1", proxy(listener.getsockname()[1], rate)))
    near, _ = listener.accept()
    data = bytes(int(rate / 2))
    threading.Thread(target=far.sendall, args=(data,), daemon=True).start()
    started, left = time.monotonic(), len(data)
    while left:
        left -= len(near.recv(1 << 20))
    return len(data) / (time.monotonic() - started) / 1e6


class Place:
    def __init__(self, kiln, folder, rate):
        self.kiln, self.folder, self.rate = kiln, folder, rate
        text = os.path.join(folder, "text.txt")
        with open(text, "w") as file:
            for path in sorted(glob.glob(os.path.join(os.path.dirname(__file__), "..", "docs", "*.md"))):
                file.write(open(path).read() + "\n\n")
        self.fixed = [f"data.train={text}", f"data.cache_dir={folder}/cache", "data.split=0.05", *SETTINGS]

    def start(self, command, settings, env):
        arguments = [self.kiln, *command, "--device", "cpu"]
        for setting in self.fixed + settings:
            arguments += ["--set", setting]
        env = {**os.environ, "RAYON_NUM_THREADS": "1", **env}
        return subprocess.Popen(arguments, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def finish(self, processes):
        texts = [process.communicate()[0] for process in processes]
        for process, text in zip(processes, texts):
            if process.returncode:
                sys.exit(f"{' '.join(process.args)}\n{text}")
        return texts

    def ranks(self, command, settings):
        """Runs a command on two ranks over the slow link. Returns what rank 0 printed."""
        port = free_port()
        far = proxy(port, self.rate)
        env = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "KILN_SECRET": "slow link"}
        both = [
            self.start(command, settings, {**env, "RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_PORT": str(of)})
            for rank, of in ((0, port), (1, far))
        ]
        return self.finish(both)[0]

    def cpu_secs(self, name, settings):
        """The processor time of a run alone."""
        run = os.path.join(self.folder, name)
        process = self.start(["train", "--task", "lm", "--preset", "gpt2-tiny", "--run", run], settings, {})
        text = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            sys.exit(text)
        shutil.rmtree(run)
        return usage.ru_utime + usage.ru_stime

    def train(self, name, settings):
        run = os.path.join(self.folder, name)
        self.ranks(["train", "--task", "lm", "--preset", "gpt2-tiny", "--run", run], settings)
        return records(run)

    def alone(self, name, settings):
        runs = [os.path.join(self.folder, f"{name}-{rank}") for rank in range(2)]
        command = ["train", "--task", "lm", "--preset", "gpt2-tiny", "--run"]
        self.finish([self.start([*command, run], settings, {}) for run in runs])
        return [records(run) for run in runs]


def records(run):
    """The records of a run, whose folder is removed: checkpoints of many runs would fill a disk."""
    with open(os.path.join(run, "metrics.jsonl")) as file:
        found = [json.loads(line) for line in file]
    shutil.rmtree(run)
    return found


def secs_of_steps(records):
    """The time of each step after the warm-up, with the number of the step."""
    times = {record["step"]: record["time"] for record in records if record["kind"] == "step"}
    return {step: times[step] - times[step - 1] for step in times if step > WARM_UP}


def fast(secs):
    """The mean of the fastest quarter."""
    secs = sorted(secs)
    return statistics.mean(secs[: max(1, len(secs) // 4)])


def speed_table(place, n_steps):
    rows = []
    for accumulated in ACCUMULATIONS:
        settings = [f"train.grad_accum_steps={accumulated}", f"train.steps={n_steps}"]
        tokens = accumulated * BATCH_TOKENS
        alone, each, local, outer = [[], []], [], [], []
        for turn in range(TURNS):
            name = f"{accumulated}-{turn}"
            for secs, run in zip(alone, place.alone(f"alone-{name}", settings)):
                secs += secs_of_steps(run).values()
            each += secs_of_steps(place.train(f"each-{name}", settings)).values()
            of_local = secs_of_steps(place.train(f"local-{name}", [*settings, "train.sync_every=10"]))
            local += [secs for number, secs in of_local.items() if number % 10]
            outer += [secs for number, secs in of_local.items() if number % 10 == 0]

        twice = sum(tokens / fast(secs) for secs in alone)
        step, without = {1: fast(each)}, fast(local)
        exchange = fast(outer) - without
        step |= {every: without + exchange / every for every in INTERVALS[1:]}

        speeds = {every: 2 * tokens / secs for every, secs in step.items()}
        rows.append({
            "accumulated": accumulated, "twice_alone": twice, "exchange_secs": exchange, "local_step_secs": without,
            "tokens_per_sec": speeds, "share": {every: speed / twice for every, speed in speeds.items()},
        })
        print(json.dumps(rows[-1]), flush=True)
    return rows


def composed_table(place, n_steps):
    """The same table from the processor time of steps and the time of an exchange."""
    long = [f"train.steps={n_steps}", "train.sync_every=2"]
    steps = secs_of_steps(place.train("exchange", long))
    exchange = fast([secs for step, secs in steps.items() if step % 2 == 0]) - fast([secs for step, secs in steps.items() if step % 2])
    rows = []
    for accumulated in ACCUMULATIONS:
        def cpu(n):
            settings = [f"train.grad_accum_steps={accumulated}", f"train.steps={n}"]
            return min(place.cpu_secs(f"cpu-{accumulated}-{n}-{turn}", settings) for turn in range(TURNS))

        tokens, step = accumulated * BATCH_TOKENS, (cpu(14) - cpu(4)) / 10
        speeds = {every: 2 * tokens / (step + exchange / every) for every in INTERVALS}
        share = {every: step / (step + exchange / every) for every in INTERVALS}
        rows.append({
            "accumulated": accumulated, "step_cpu_secs": step, "exchange_secs": exchange, "twice_alone": 2 * tokens / step,
            "tokens_per_sec": speeds, "share": share,
        })
        print(json.dumps(rows[-1]), flush=True)
    return rows


def losses(place, n_batches):
    found = []
    for accumulated, every in LOSS_POINTS:
        settings = [
            f"train.grad_accum_steps={accumulated}", f"train.sync_every={every}", f"train.steps={n_batches // accumulated}",
            "optim.warmup_steps=10", f"optim.lr={1e-3 * accumulated ** 0.5}",
        ]
        run = place.train(f"loss-{accumulated}-{every}", settings)
        loss = [record for record in run if record["kind"] == "validation"][-1]["loss"]
        found.append({"accumulated": accumulated, "sync_every": every, "loss": loss})
        print(json.dumps(found[-1]), flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kiln")
    parser.add_argument("--rate", type=float, default=100, help="megabytes per second in each direction")
    parser.add_argument("--steps", type=int, default=22)
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--loss-batches", type=int, default=0)
    parser.add_argument("--only-losses", action="store_true")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    rate = arguments.rate * 1e6

    with tempfile.TemporaryDirectory() as folder:
        place = Place(os.path.abspath(arguments.kiln), folder, rate)
        found = {"rate": arguments.rate, "measured_rate": measured_rate(rate)}
        print(f"the proxy passes on {found['measured_rate']:.1f} MB/s", flush=True)
        if not arguments.only_losses:
            command = ["diagnose", "--task", "lm", "--preset", "gpt2-tiny", "--only", "link,together", "--steps", "4", "--repeats", "3"]
            found["diagnosis"] = place.ranks(command, ["train.grad_accum_steps=1"])
            print(found["diagnosis"], flush=True)
            table = composed_table if arguments.busy else speed_table
            found["speeds"] = table(place, arguments.steps)
        if arguments.loss_batches:
            found["losses"] = losses(place, arguments.loss_batches)
    if arguments.out:
        with open(arguments.out, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
