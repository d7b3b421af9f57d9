"""Times training steps of adapters (LoRA) of a Llama with `transformers` and `peft`, eager and through `torch.compile`.

usage: adapters.py model WORKLOAD.json

`kiln bench --preset llama-125m --set model.lora.rank=16 --peer benches/pytorch/adapters.py` writes the file; README.md
describes it and the lines that are printed. The base weights are frozen, in the precision of the workload; the adapters
are f32, as `peft` makes them. Everything else is as in `train_step.py`. A model that is no Llama with adapters is left
out: nothing is printed.
"""

import json
import sys

import torch
import torch.nn as nn
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from train_step import DTYPES, model_batches, time_steps

TARGETS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj"}
TARGETS |= {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}


def is_adapted_llama(model):
    """Whether `transformers` has the network of this `config.json`, and whether adapters of it are trained."""
    llama = {"architecture": "decoder_only", "activation": "swiglu", "norm_kind": "rms_norm", "positions": "rotary"}
    lora = model.get("lora") or {}
    is_llama = all(model[key] == value for key, value in llama.items()) and not model["bias"]
    return is_llama and lora.get("rank", 0) > 0 and all(target in TARGETS for target in lora["targets"])


class Adapted(nn.Module):
    """A Llama whose base weights are frozen in `dtype`. `forward` returns the mean loss."""

    def __init__(self, model, dtype):
        super().__init__()
        config = LlamaConfig(
            vocab_size=model["target_vocab_size"],
            hidden_size=model["d_model"],
            intermediate_size=model["d_ff"],
            num_hidden_layers=model["n_decoder_layers"],
            num_attention_heads=model["n_heads"],
            num_key_value_heads=model["n_kv_heads"] or model["n_heads"],
            max_position_embeddings=model["max_positions"],
            rms_norm_eps=model["norm_eps"],
            rope_theta=model["rope_theta"],
            tie_word_embeddings=model["tie_embeddings"] != "none",
            attn_implementation="sdpa",
            use_cache=False,
        )
        lora = model["lora"]
        targets = [TARGETS[target] for target in lora["targets"]]
        adapters = LoraConfig(
            r=lora["rank"], lora_alpha=lora["alpha"], lora_dropout=lora["dropout"], target_modules=targets
        )
        self.llama = get_peft_model(LlamaForCausalLM(config).to(dtype), adapters)

    def forward(self, ids, labels):
        # The labels of the workload are those of each place; `transformers` shifts them unless told.
        return self.llama(input_ids=ids, labels=labels, shift_labels=labels).loss


def main():
    if len(sys.argv) != 3 or sys.argv[1] != "model":
        raise SystemExit(__doc__)
    with open(sys.argv[2], encoding="utf-8") as file:
        workload = json.load(file)
    if not is_adapted_llama(workload["model"]):
        return

    batches, tokens = model_batches(workload)
    for compiled in (False, True):
        torch.manual_seed(0)
        model = Adapted(workload["model"], DTYPES[workload["dtype"]])
        n_trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        print(f"{n_trained} parameters are trained", file=sys.stderr)
        time_steps(workload["name"], model, batches, tokens, workload["flops"], compiled, workload)


if __name__ == "__main__":
    main()
