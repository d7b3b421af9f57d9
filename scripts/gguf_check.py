#!/usr/bin/env python3
"""Checks GGUF files of Kiln with the packages `gguf` and `llama-cpp-python`.

    pip install gguf llama-cpp-python
    python scripts/gguf_check.py F32.gguf OTHER.gguf PROMPT TEXT

The tensors of OTHER must be those of F32 within the error of their types, blocks of Q8_0 bit for bit as `gguf` makes them. llama.cpp must
load both, and continue PROMPT with TEXT, greedily, from F32: rounded to fewer bits, a small model may say something else.
"""
import sys

import gguf
import llama_cpp
import numpy as np
from gguf.quants import dequantize, quantize

ERRORS = {"F32": 0.0, "F16": 1e-3, "BF16": 8e-3, "Q8_0": 8e-3}


def compare(first, other):
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(first).tensors}
    for tensor in gguf.GGUFReader(other).tensors:
        exact = tensors.pop(tensor.name)
        wanted = dequantize(exact.data, exact.tensor_type)
        found = dequantize(tensor.data, tensor.tensor_type)
        error = np.abs(found - wanted).max() / max(np.abs(wanted).max(), 1e-30)
        name = tensor.tensor_type.name
        assert error <= ERRORS[name], f"{tensor.name} is off by {error:.1e} as {name}"
        if name == "Q8_0":
            assert np.array_equal(quantize(wanted, tensor.tensor_type), tensor.data), f"{tensor.name} has other blocks"
    assert not tensors, f"{other} lacks {list(tensors)}"


def continued(file, prompt, n):
    defaults = llama_cpp.llama_model_default_params

    def without_repacking():
        # Its kernels for AMX crash on some virtual machines.
        params = defaults()
        params.use_extra_bufts = False
        return params

    llama_cpp.llama_cpp.llama_model_default_params = without_repacking
    model = llama_cpp.Llama(file, n_ctx=64, verbose=False)
    ids = model.tokenize(prompt.encode(), add_bos=True, special=True)
    text = b""
    for _, token in zip(range(n), model.generate(list(ids), temp=0.0, repeat_penalty=1.0)):
        if token == model.token_eos():
            break
        text += model.detokenize([token], prev_tokens=ids)
        ids.append(token)
    return text


def main():
    first, other, prompt, text = sys.argv[1:]
    compare(first, other)
    for file in [first, other]:
        shown = continued(file, prompt, 8).decode(errors="replace")
        print(f"{file}: {shown!r}")
        if file != first:
            continue
        # Programs differ in how many marks stand for bytes that are no text.
        plain = [line.replace("\N{REPLACEMENT CHARACTER}", "") for line in (shown, text)]
        assert plain[0] == plain[1], f"{file} continues {prompt!r} with {shown!r}, Kiln with {text!r}"


if __name__ == "__main__":
    main()
