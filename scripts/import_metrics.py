#!/usr/bin/env python3
"""Gives the metrics of a Kiln run to Weights & Biases or to trackio.

    python3 scripts/import_metrics.py wandb RUN [--project NAME] [--name NAME]
    python3 scripts/import_metrics.py trackio RUN [--project NAME] [--name NAME]

Needs the tracker's own package (pip install wandb, or pip install trackio). docs/trackers.md has the rest.
"""

import argparse
import importlib
import json
import pathlib
import sys
import tomllib

# Each step has its own; the means of a line would overwrite them.
OF_STEPS = {"loss", "nll", "grad_norm", "lr", "loss_scale"}


def flat(fields, prefix=""):
    """Numbers inside `fields`, by their path `a.b`."""
    for key, value in fields.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield prefix + key, value


def metrics(path):
    """Metrics by step, in the order of the steps."""
    steps = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            print(f"{path}:{number}: not JSON, left out", file=sys.stderr)
            continue
        kind, step = record.pop("kind", None), record.pop("step", None)
        if kind == "start" and record["schema"] > 2:
            sys.exit(f"{path}: schema {record['schema']}, but this script reads version 2")
        if kind not in ("step", "window", "validation") or step is None:
            continue
        record.pop("time")
        prefix = "validation." if kind == "validation" else ""
        found = dict(flat(record, prefix))
        if kind == "window":
            found = {name: value for name, value in found.items() if name not in OF_STEPS}
        steps.setdefault(step, {}).update(found)
    return sorted(steps.items())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tracker", choices=["wandb", "trackio"])
    parser.add_argument("run", type=pathlib.Path, help="the run folder")
    parser.add_argument("--project", default="kiln")
    parser.add_argument("--name", help="name of the run; the folder's by default")
    args = parser.parse_args()

    try:
        tracker = importlib.import_module(args.tracker)
    except ModuleNotFoundError:
        sys.exit(f"{args.tracker} is not installed: pip install {args.tracker}")
    config = tomllib.loads((args.run / "config.toml").read_text())
    found = metrics(args.run / "metrics.jsonl")
    run = tracker.init(project=args.project, name=args.name or args.run.resolve().name, config=config)
    for step, values in found:
        run.log(values, step=step)
    run.finish()
    print(f"{len(found)} steps of {args.run} are in {args.tracker}, project {args.project}")


if __name__ == "__main__":
    main()
