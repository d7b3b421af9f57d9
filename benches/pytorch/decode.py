"""Decoding beside `kiln bench decode`: CTranslate2 for translations, `transformers` for continuations.

usage: decode.py CASES

CASES is a JSON list: {"model": NAME, "task": "translate", "lines": N, "beams": N, "target": N} or
{"model": NAME, "task": "continue", "rows": N, "prompt": N, "new": N}, with "device" and "dtype". Weights are random and no target ends
before its limit, as in Kiln. Prints a line per case and program:

  decode CASE RUNNER 1.234 s 56789 tok/s
  decode CASE RUNNER failed: REASON
"""

import json
import os
import statistics
import sys
import tempfile
import time

REPEATS = 3


def timed(work, sync):
    work()
    sync()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        sync()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def token(row, i, vocab):
    return 4 + (row * 31 + i) * 7919 % (vocab - 4)


# transformer-base: 6 + 6 layers of 512 features, 8 heads, 2048 inner features, 37,000 tokens.
VOCAB, WIDTH, INNER = 37000, 512, 2048


def random_translator(folder, quantization):
    """Writes CTranslate2's model of that shape with random weights."""
    import ctranslate2
    import numpy as np
    from ctranslate2.specs import TransformerSpec

    spec = TransformerSpec.from_config((6, 6), 8, pre_norm=False)
    random = np.random.default_rng(1)

    def linear(layer, rows, columns):
        layer.weight = random.normal(0, 0.05, (rows, columns)).astype(np.float32)
        layer.bias = np.zeros(rows, np.float32)

    def norm(layer):
        layer.gamma, layer.beta = np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32)

    def attention(layer, is_self):
        if is_self:
            linear(layer.linear[0], 3 * WIDTH, WIDTH)
        else:
            linear(layer.linear[0], WIDTH, WIDTH)
            linear(layer.linear[1], 2 * WIDTH, WIDTH)
        linear(layer.linear[-1], WIDTH, WIDTH)
        norm(layer.layer_norm)

    table = random.normal(0, 0.05, (VOCAB, WIDTH)).astype(np.float32)
    position = np.arange(256)[:, None] / 10000 ** (np.arange(WIDTH // 2)[None] * 2 / WIDTH)
    positions = np.concatenate([np.sin(position), np.cos(position)], 1).astype(np.float32)
    for side in (spec.encoder, spec.decoder):
        embeddings = side.embeddings[0] if isinstance(side.embeddings, list) else side.embeddings
        embeddings.weight = table
        side.position_encodings.encodings = positions
        side.scale_embeddings = True
        for layer in side.layer:
            attention(layer.self_attention, True)
            if hasattr(layer, "attention"):
                attention(layer.attention, False)
            linear(layer.ffn.linear_0, INNER, WIDTH)
            linear(layer.ffn.linear_1, WIDTH, INNER)
            norm(layer.ffn.layer_norm)
    linear(spec.decoder.projection, VOCAB, WIDTH)

    words = ["<pad>", "<s>", "</s>", "<unk>"] + [f"w{i}" for i in range(4, VOCAB)]
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = "<s>", "</s>", "<unk>"
    spec.config.decoder_start_token = "<s>"
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(folder)
    return ctranslate2


def translate(case):
    is_gpu = case["device"] == "cuda"
    types = ["float16", "bfloat16"] if is_gpu else ["float32", "int8"]
    lines = [[f"w{token(line, i, VOCAB)}" for i in range(8 + line * 17 % 40)] + ["</s>"] for line in range(case["lines"])]
    for compute_type in types:
        with tempfile.TemporaryDirectory() as folder:
            folder = os.path.join(folder, "model")
            os.mkdir(folder)
            ctranslate2 = random_translator(folder, compute_type)
            threads = {} if is_gpu else {"intra_threads": int(os.environ.get("RAYON_NUM_THREADS", os.cpu_count()))}
            translator = ctranslate2.Translator(folder, device=case["device"], compute_type=compute_type, **threads)
            best = None
            for batch in (8192, 32768) if is_gpu else (512, 2048):
                def work():
                    found = translator.translate_batch(
                        lines, beam_size=case["beams"], max_batch_size=batch, batch_type="tokens",
                        min_decoding_length=case["target"], max_decoding_length=case["target"], disable_unk=True)
                    assert all(len(one.hypotheses[0]) == case["target"] for one in found)
                seconds = timed(work, lambda: None)
                best = min(best or seconds, seconds)
            yield f"ctranslate2-{compute_type}", best, case["lines"] * case["target"]


def causal_model(case):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    if case["model"] == "gpt2-124m":
        model = GPT2LMHeadModel(GPT2Config())
    else:
        model = LlamaForCausalLM(LlamaConfig(
            vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32,
            num_key_value_heads=4, max_position_embeddings=2048))
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[case["dtype"]]
    return model.to(case["device"], dtype).eval()


def continued(case):
    import torch

    model = causal_model(case)
    vocab = model.config.vocab_size
    ids = torch.tensor([[token(row, i, vocab) for i in range(case["prompt"])] for row in range(case["rows"])])
    ids = ids.to(case["device"])
    sync = torch.cuda.synchronize if case["device"] == "cuda" else lambda: None
    runners = [("transformers", {})]
    if case["device"] == "cuda":
        runners.append(("transformers-static-compiled", {"cache_implementation": "static"}))
    for name, options in runners:
        def work():
            with torch.no_grad():
                model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=case["new"],
                               min_new_tokens=case["new"], eos_token_id=None, pad_token_id=0, **options)
        yield name, timed(work, sync), case["rows"] * case["new"]


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        cases = json.load(file)
    for number, case in enumerate(cases):
        runner = "ctranslate2" if case["task"] == "translate" else "transformers"
        try:
            for name, seconds, tokens in (translate if case["task"] == "translate" else continued)(case):
                print(f"decode {number} {name} {seconds:.4f} s {tokens / seconds:.0f} tok/s", flush=True)
        except Exception as error:  # the other cases are still worth measuring
            print(f"decode {number} {runner} failed: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}", flush=True)


if __name__ == "__main__":
    main()
