"""Writes generated text as JSON Lines and Parquet: words of a made-up vocabulary by Zipf's law, for measurements of size and speed.

usage: generated_text.py FOLDER MEGABYTES [--files 4] [--parquet]

Writes FOLDER/text-0.jsonl and so on, each with an equal part of the bytes of text; with --parquet also FOLDER/text-0.parquet with the same
documents (zstd, row groups of 10,000). Documents have 100 to 1,000 words. Needs numpy, and pyarrow for Parquet. The seed is fixed.
"""

import argparse
import json
import os

import numpy as np

WORDS = 200_000


def vocabulary(random):
    syllables = np.array(["".join(pair) for pair in [(c, v) for c in "bcdfglmnprstvz" for v in "aeiou"]])
    lengths = random.integers(1, 6, WORDS)
    return np.array(["".join(random.choice(syllables, n)) for n in lengths], dtype=object)


def documents(random, words, n_bytes):
    """Yields documents of together about so many bytes."""
    weights = 1.0 / np.arange(2, WORDS + 2)
    limits = np.cumsum(weights / weights.sum())
    while n_bytes > 0:
        lengths = random.integers(100, 1000, 200)
        drawn = words[np.searchsorted(limits, random.random(lengths.sum()))]
        for part in np.split(drawn, np.cumsum(lengths)[:-1]):
            text = " ".join(part) + "."
            n_bytes -= len(text)
            yield text


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("megabytes", type=int)
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--parquet", action="store_true")
    args = parser.parse_args()
    os.makedirs(args.folder, exist_ok=True)
    random = np.random.default_rng(1)
    words = vocabulary(random)
    for number in range(args.files):
        name = os.path.join(args.folder, f"text-{number}")
        kept = []
        with open(name + ".jsonl", "w", encoding="utf-8") as file:
            for text in documents(random, words, args.megabytes * 1_000_000 // args.files):
                file.write(json.dumps({"text": text}) + "\n")
                if args.parquet:
                    kept.append(text)
        if args.parquet:
            import pyarrow
            import pyarrow.parquet

            table = pyarrow.table({"text": kept})
            pyarrow.parquet.write_table(table, name + ".parquet", compression="zstd", row_group_size=10_000)


if __name__ == "__main__":
    main()
