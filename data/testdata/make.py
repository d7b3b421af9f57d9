#!/usr/bin/env python3
"""Writes the tables of this folder with pyarrow and datasets: pip install pyarrow datasets; python3 make.py"""

import json
import lzma
import pathlib
import shutil

import datasets
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq

HERE = pathlib.Path(__file__).parent
N = 6

# Every task finds its fields here.
pairs = [{"en": f"row number {n}", "it": f"riga numero {n}"} for n in range(N)]
rows = {
    "src": [pair["en"] for pair in pairs],
    "trg": [pair["it"] for pair in pairs],
    "translation": pairs,
    "text": [f"Document {n}.\nIts second line: caffè." for n in range(N)],
    "label": [n % 2 for n in range(N)],
    "tokens": [["in", "Rome", str(n)] for n in range(N)],
    "tags": [[0, 1, 0]] * N,
    "prompt": [f"Question {n}?" for n in range(N)],
    "completion": [f"Answer {n}." for n in range(N)],
    "chosen": [f"Good answer {n}." for n in range(N)],
    "rejected": [f"Bad answer {n}." for n in range(N)],
    "messages": [
        [{"role": "user", "content": f"Hi {n}"}, {"role": "assistant", "content": "Hello!"}] for n in range(N)
    ],
    "image": [b"\x89PNG\x00\xff"] * N,
    "score": [n / 2 for n in range(N)],
}
features = datasets.Features(
    {
        "src": datasets.Value("string"),
        "trg": datasets.Value("string"),
        "translation": datasets.Translation(languages=["en", "it"]),
        "text": datasets.Value("large_string"),
        "label": datasets.ClassLabel(names=["no", "yes"]),
        "tokens": datasets.List(datasets.Value("string")),
        "tags": datasets.List(datasets.ClassLabel(names=["O", "B-LOC"])),
        "prompt": datasets.Value("string"),
        "completion": datasets.Value("string"),
        "chosen": datasets.Value("string"),
        "rejected": datasets.Value("string"),
        "messages": datasets.List({"role": datasets.Value("string"), "content": datasets.Value("string")}),
        "image": datasets.Value("binary"),
        "score": datasets.Value("float32"),
    }
)
data = datasets.Dataset.from_dict(rows, features=features)
table = data.data.table

with lzma.open(HERE / "rows.jsonl.xz", "wt", encoding="utf-8") as file:
    for n in range(N):
        row = {name: values[n] for name, values in rows.items() if name not in ("image", "score")}
        row["label"] = ["no", "yes"][row["label"]]
        row["tags"] = [["O", "B-LOC"][tag] for tag in row["tags"]]
        print(json.dumps(row), file=file)

# As the Hub has it, with several row groups and snappy.
data.to_parquet(str(HERE / "rows.parquet"), batch_size=4)
# Other codecs and pages: dictionaries, second page version, zstd.
pq.write_table(table, HERE / "zstd.parquet", compression="zstd", data_page_version="2.0", row_group_size=2)
pq.write_table(table, HERE / "plain.parquet", compression="gzip", use_dictionary=False)
pq.write_table(table, HERE / "brotli.parquet", compression="brotli")

# Feather 2 and a stream; the dictionary of the second has a column of its own.
feather.write_feather(table, str(HERE / "rows.feather"), compression="lz4")
plain = table.set_column(0, "src", table["src"].combine_chunks().dictionary_encode())
with pa.ipc.new_stream(HERE / "rows.arrow", plain.schema) as stream:
    stream.write_table(plain, max_chunksize=4)
with pa.ipc.new_file(HERE / "zstd.arrow", table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as file:
    file.write_table(table)

saved = HERE / "saved"
shutil.rmtree(saved, ignore_errors=True)
datasets.DatasetDict({"train": data, "test": data.select([0, 1])}).save_to_disk(str(saved))
