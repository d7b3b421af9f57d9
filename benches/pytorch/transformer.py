"""Any model of Kiln in PyTorch, built from its `config.json`: encoder-decoder, decoder-only or encoder-only.

Modules are written as PyTorch users write them: one projection for queries, keys and values, scaled dot-product
attention, and the fused norms of `torch.nn`.

Shapes: B rows, T positions, D features of the model, H heads of K dimensions, G heads of keys and values, V entries of
the vocabulary.
"""

import math
from functools import partial

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

ACTIVATIONS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}


# What selective checkpointing keeps: products and attention. Everything else is computed again.
KEPT = [
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
]
CHECKPOINTING = {
    "layer": {},
    "selective": {"context_fn": partial(create_selective_checkpoint_contexts, KEPT)},
}


def norm(config):
    kind = nn.LayerNorm if config["norm_kind"] == "layer_norm" else nn.RMSNorm
    return kind(config["d_model"], config["norm_eps"])


def sinusoids(config):
    """Sines and cosines of positions `[max_positions, D]`: alternating, or all sines first."""
    d = config["d_model"]
    frequencies = torch.exp(torch.arange(0, d, 2) * (-math.log(10_000) / d))
    angles = torch.arange(config["max_positions"])[:, None] * frequencies
    if config["positions"] == "sinusoidal":
        return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
    return torch.cat([angles.sin(), angles.cos()], -1)


def rotations(config):
    """Cosines and sines `[max_positions, K]` of the angles by which rotary positions rotate."""
    k = config["d_model"] // config["n_heads"]
    frequencies = config["rope_theta"] ** (-torch.arange(0, k, 2) / k)
    angles = torch.arange(config["max_positions"])[:, None] * frequencies
    angles = torch.cat([angles, angles], -1)
    return torch.stack([angles.cos(), angles.sin()])


def rotate(x, rotation):
    """Rotates features i and i + K / 2 of `[B, H, T, K]`."""
    cos, sin = rotation[:, : x.shape[2]].to(x.dtype)
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class Attention(nn.Module):
    """Attention to the same sequence, or to another one if `cross`."""

    def __init__(self, config, cross=False):
        super().__init__()
        for key in ("head_dim", "qk_norm", "qkv_bias", "rope_scaling", "attention_window"):
            if config.get(key):
                raise SystemExit(f"model.{key} = {config[key]} is not supported by the PyTorch baseline")
        d, h = config["d_model"], config["n_heads"]
        g = config["n_kv_heads"] or h
        self.head_dim, self.grouped, self.cross = d // h, g != h, cross
        self.dropout = config["attention_dropout"]
        self.sizes = [d, g * self.head_dim, g * self.head_dim]

        if cross:
            self.query = nn.Linear(d, d, config["bias"])
            self.key_value = nn.Linear(d, sum(self.sizes[1:]), config["bias"])
        else:
            self.qkv = nn.Linear(d, sum(self.sizes), config["bias"])
        self.out = nn.Linear(d, d, config["bias"])

    def heads(self, x):
        """`[B, T, H * K]` -> `[B, H, T, K]`"""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def forward(self, x, memory=None, mask=None, causal=False, rotation=None):
        """`x`: `[B, T, D]`; `memory`: `[B, S, D]`; `mask` is true at keys to attend to."""
        if self.cross:
            parts = [self.query(x), *self.key_value(memory).split(self.sizes[1:], -1)]
        else:
            parts = self.qkv(x).split(self.sizes, -1)

        q, k, v = map(self.heads, parts)
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal, dropout_p=dropout, enable_gqa=self.grouped
        )
        return self.out(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, config):
        super().__init__()
        d, f = config["d_model"], config["d_ff"]
        self.gated = config["activation"] == "swiglu"
        self.activation = F.silu if self.gated else ACTIVATIONS[config["activation"]]
        self.dropout = config.get("activation_dropout", config["dropout"])
        self.inner = nn.Linear(d, 2 * f if self.gated else f, config["bias"])
        self.outer = nn.Linear(f, d, config["bias"])

    def forward(self, x):
        x = self.inner(x)
        if self.gated:
            gate, up = x.chunk(2, -1)
            x = self.activation(gate) * up
        else:
            x = self.activation(x)
        return self.outer(F.dropout(x, self.dropout, self.training))


class Layer(nn.Module):
    """Self-attention, attention to `memory` if `cross`, and a feed-forward, each normalized before or after its sum."""

    def __init__(self, config, cross=False):
        super().__init__()
        self.pre, self.dropout = config["norm"] == "pre", config["dropout"]
        self.attention, self.norm_attention = Attention(config), norm(config)
        if cross:
            self.cross, self.norm_cross = Attention(config, cross=True), norm(config)
        self.feed_forward, self.norm_feed_forward = FeedForward(config), norm(config)

    def branch(self, x, norm, function):
        y = F.dropout(function(norm(x) if self.pre else x), self.dropout, self.training)
        return x + y if self.pre else norm(x + y)

    def forward(self, x, mask=None, causal=False, rotation=None, memory=None, memory_mask=None):
        x = self.branch(
            x, self.norm_attention, lambda x: self.attention(x, mask=mask, causal=causal, rotation=rotation)
        )
        if memory is not None:
            x = self.branch(x, self.norm_cross, lambda x: self.cross(x, memory, mask=memory_mask))
        return self.branch(x, self.norm_feed_forward, self.feed_forward)


class Stack(nn.Module):
    """Embeddings and layers of one side. `tokens` is its token table."""

    def __init__(self, config, tokens, n_layers, cross=False):
        super().__init__()
        d, positions = config["d_model"], config["positions"]
        self.tokens, self.dropout = tokens, config["dropout"]
        self.scale = math.sqrt(d) if config["scale_embedding"] else 1.0
        self.positions = nn.Embedding(config["max_positions"], d) if positions == "learned" else None
        self.register_buffer("sinusoids", sinusoids(config) if positions.startswith("sinusoidal") else None)
        self.register_buffer("rotation", rotations(config) if positions == "rotary" else None)
        n_types = config["n_token_types"]
        self.types = nn.Embedding(n_types, d) if n_types > 0 else None
        self.norm_embedding = norm(config) if config["embedding_norm"] else nn.Identity()
        self.layers = nn.ModuleList(Layer(config, cross) for _ in range(n_layers))
        self.norm = norm(config) if config["norm"] == "pre" else nn.Identity()
        self.checkpointing = "off"

    def forward(self, ids, **options):
        x = self.tokens(ids)
        if self.scale != 1.0:
            x = x * self.scale
        if self.positions is not None:
            x = x + self.positions.weight[: ids.shape[1]]
        if self.sinusoids is not None:
            x = x + self.sinusoids[: ids.shape[1]]
        if self.types is not None:
            x = x + self.types.weight[0]

        x = F.dropout(self.norm_embedding(x), self.dropout, self.training)
        for layer in self.layers:
            if self.checkpointing == "off":
                x = layer(x, rotation=self.rotation, **options)
            else:
                how = CHECKPOINTING[self.checkpointing]
                x = checkpoint(layer, x, rotation=self.rotation, use_reentrant=False, **how, **options)
        return self.norm(x)


class Transformer(nn.Module):
    """The model of a `config.json`. `forward` returns the mean loss over the labels that are not `ignored`.

    `checkpointing` is "off", "selective" or "layer".
    """

    def __init__(self, config, label_smoothing=0.0, ignored=-1, checkpointing="off"):
        super().__init__()
        d, kind = config["d_model"], config["architecture"]
        self.kind, self.label_smoothing, self.ignored = kind, label_smoothing, ignored
        self.pad = config["pad_id"]
        source, target, tied = config["source_vocab_size"], config["target_vocab_size"], config["tie_embeddings"]
        own = nn.Embedding(source if kind == "encoder_only" else target, d)

        if kind == "encoder_decoder":
            other = own if tied == "three_way" else nn.Embedding(source, d)
            self.encoder = Stack(config, other, config["n_encoder_layers"])
            self.decoder = Stack(config, own, config["n_decoder_layers"], cross=True)
        elif kind == "decoder_only":
            self.decoder = Stack(config, own, config["n_decoder_layers"])
        else:
            self.encoder = Stack(config, own, config["n_encoder_layers"])
            activation = {"swiglu": "silu"}.get(config["activation"], config["activation"])
            self.head_in, self.head_norm = nn.Linear(d, d, config["bias"]), norm(config)
            self.head_activation = ACTIVATIONS[activation]

        self.out = nn.Linear(d, own.num_embeddings, bias=kind == "encoder_only")
        if tied != "none":
            self.out.weight = own.weight
        for module in self.modules():
            if isinstance(module, Stack):
                module.checkpointing = checkpointing
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=d**-0.5 if config["scale_embedding"] else 0.02)

    def forward(self, *batch):
        """`batch`: input and labels, or source, target and labels; each `[B, T]`."""
        *inputs, labels = batch
        if self.kind == "encoder_decoder":
            mask = (inputs[0] != self.pad)[:, None, None, :]
            memory = self.encoder(inputs[0], mask=mask)
            x = self.decoder(inputs[1], causal=True, memory=memory, memory_mask=mask)
        elif self.kind == "decoder_only":
            x = self.decoder(inputs[0], causal=True)
        else:
            x = self.head_norm(self.head_activation(self.head_in(self.encoder(inputs[0]))))

        logits = self.out(x).flatten(0, 1).float()
        return F.cross_entropy(
            logits, labels.flatten(), ignore_index=self.ignored, label_smoothing=self.label_smoothing
        )
