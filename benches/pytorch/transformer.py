"""Any model of Kiln in PyTorch, built from its `config.json`: encoder-decoder, decoder-only or encoder-only.

Modules are written as PyTorch users write them: one projection for queries, keys and values, scaled dot-product
attention, and the fused norms of `torch.nn`. Windows and bounds of the scores use `flex_attention` where the model is
compiled, which leaves out tiles; eager, it would keep all scores, as the masks do that then stand in for it.

Shapes: B rows, T positions, D features of the model, H heads of K dimensions, G heads of keys and values, V entries of
the vocabulary.
"""

import math
from functools import partial

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

ACTIVATIONS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "relu_squared": lambda x: F.relu(x).square(),
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


# How inner features of a gated feed-forward let others through.
GATES = {"swiglu": F.silu, "geglu": ACTIVATIONS["gelu_tanh"]}


def norm(config):
    kind = nn.LayerNorm if config["norm_kind"] == "layer_norm" else nn.RMSNorm
    return kind(config["d_model"], config["norm_eps"])


def head_dim(config):
    return config.get("head_dim") or config["d_model"] // config["n_heads"]


def bounded(x, cap):
    """Brings `x` between -cap and cap; 0 sets no bound."""
    return cap * torch.tanh(x / cap) if cap else x


def sinusoids(config):
    """Sines and cosines of positions `[max_positions, D]`: alternating, or all sines first."""
    d = config["d_model"]
    is_fairseq = config["positions"] == "sinusoidal_fairseq"
    steps = max(d // 2 - 1, 1) if is_fairseq else d / 2
    frequencies = torch.exp(torch.arange(d // 2) * (-math.log(10_000) / steps))
    first = config["pad_id"] + 1 if is_fairseq else 0
    angles = (torch.arange(config["max_positions"]) + first)[:, None] * frequencies
    if config["positions"] == "sinusoidal":
        return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
    return torch.cat([angles.sin(), angles.cos()], -1)


def stretched(frequencies, scaling):
    """Divides low frequencies by a factor (Llama 3.1), or all of them."""
    factor, low, high = (scaling.get(key, 0) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    if not low:
        return frequencies / factor
    turns = scaling["original_max_positions"] * frequencies / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies * (kept + (1 - kept) / factor)


def rotations(config, is_local=False):
    """Cosines and sines `[2, max_positions, K]` of the angles by which rotary positions rotate."""
    k, theta = head_dim(config), config["rope_theta"]
    scaling, local_theta = config.get("rope_scaling"), config.get("local_rope_theta")
    if is_local and local_theta:
        scaling, theta = None, local_theta
    frequencies = theta ** (-torch.arange(0, k, 2) / k)
    if scaling:
        frequencies = stretched(frequencies, scaling)
    angles = torch.arange(config["max_positions"])[:, None] * frequencies
    angles = torch.cat([angles, angles], -1)
    return torch.stack([angles.cos(), angles.sin()])


def rotate(x, rotation):
    """Rotates features i and i + K / 2 of `[B, H, T, K]`."""
    cos, sin = rotation[:, : x.shape[2]].to(x.dtype)
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class Relative(nn.Module):
    """A number per head and bucket of distances, which is added to the scores (T5)."""

    def __init__(self, config, causal):
        super().__init__()
        self.causal, self.farthest = causal, config["relative_max_distance"]
        self.numbers = nn.Embedding(config["relative_buckets"], config["n_heads"])

    def forward(self, t):
        """Returns `[1, H, T, T]`, without keys that a query does not see."""
        places = torch.arange(t, device=self.numbers.weight.device)
        ahead = places[None, :] - places[:, None]
        n, bucket = self.numbers.num_embeddings, torch.zeros_like(ahead)
        if self.causal:
            distance = (-ahead).clamp(min=0)
        else:
            n //= 2
            bucket, distance = (ahead > 0) * n, ahead.abs()
        near = n // 2
        widening = math.log(self.farthest / near)
        far = near + (torch.log(distance.clamp(min=1) / near) / widening * (n - near)).long()
        bucket = bucket + torch.where(distance < near, distance, far.clamp(max=n - 1))
        bias = self.numbers(bucket).permute(2, 0, 1)[None]
        return bias.masked_fill(ahead > 0, -math.inf) if self.causal else bias


def sees_within(window):
    """Returns the function of whether a query sees a key, of causal attention to the last `window` keys."""

    def sees(b, h, query, key):
        return (query >= key) & (query - key < window)

    return sees


class Attention(nn.Module):
    """Attention to the same sequence, or to another one if `cross`. `window`: keys that a query sees, or 0 for all."""

    def __init__(self, config, cross=False, window=0):
        super().__init__()
        d, h, k = config["d_model"], config["n_heads"], head_dim(config)
        g = config["n_kv_heads"] or h
        self.head_dim, self.grouped, self.cross, self.window = k, g != h, cross, window
        self.dropout, self.cap = config["attention_dropout"], config.get("attention_softcap", 0)
        self.scale = config.get("attention_scale") or k**-0.5
        self.sizes = [h * k, g * k, g * k]

        bias = config["bias"] if config.get("qkv_bias") is None else config["qkv_bias"]
        if cross:
            self.query = nn.Linear(d, h * k, bias)
            self.key_value = nn.Linear(d, 2 * g * k, bias)
        else:
            self.qkv = nn.Linear(d, sum(self.sizes), bias)
        normed = config.get("qk_norm") and not cross
        self.norms = nn.ModuleList(nn.RMSNorm(k, config["norm_eps"]) for _ in range(2)) if normed else None
        self.out = nn.Linear(h * k, d, config["bias"])
        self.seen = self.blocks = None

    def heads(self, x):
        """`[B, T, H * K]` -> `[B, H, T, K]`"""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def prepare(self, t, device):
        """Finds which keys queries see in rows of `t` positions, and the tiles of them where `flex_attention` can help."""
        if self.cross or not (self.window or self.cap):
            return
        places, sees = torch.arange(t, device=device), sees_within(self.window or t)
        self.seen = sees(0, 0, places[:, None], places[None, :])
        if device == "cuda" and not self.dropout:
            self.blocks = create_block_mask(sees, None, None, t, t, device=device)

    def forward(self, x, memory=None, mask=None, causal=False, rotation=None, bias=None):
        """`x`: `[B, T, D]`; `memory`: `[B, S, D]`; `mask` is true at keys to attend to; `bias` is added to scores."""
        if self.cross:
            parts = [self.query(x), *self.key_value(memory).split(self.sizes[1:], -1)]
        else:
            parts = self.qkv(x).split(self.sizes, -1)

        q, k, v = map(self.heads, parts)
        if self.norms is not None:
            q, k = self.norms[0](q).to(v.dtype), self.norms[1](k).to(v.dtype)
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        return self.out(self.attend(q, k, v, mask, causal, bias).transpose(1, 2).flatten(2))

    def attend(self, q, k, v, mask, causal, bias):
        if self.blocks is not None and causal and torch.compiler.is_compiling():
            bound = (lambda score, *_: bounded(score, self.cap)) if self.cap else None
            return flex_attention(q, k, v, bound, self.blocks, scale=self.scale, enable_gqa=self.grouped)
        if bias is not None:
            mask, causal = (bias if mask is None else bias.masked_fill(~mask, -math.inf)).to(q.dtype), False
        elif self.seen is not None and causal:
            mask, causal = self.seen, False

        dropout = self.dropout if self.training else 0.0
        if not self.cap:
            return F.scaled_dot_product_attention(
                q, k, v, mask, dropout, causal, scale=self.scale, enable_gqa=self.grouped
            )
        repeats = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        scores = bounded((q @ k.transpose(-1, -2)).float() * self.scale, self.cap)
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        return F.dropout(scores.softmax(-1).to(v.dtype), dropout) @ v


class FeedForward(nn.Module):
    def __init__(self, config):
        super().__init__()
        d, f = config["d_model"], config["d_ff"]
        self.gated = config["activation"] in GATES
        self.activation = (GATES if self.gated else ACTIVATIONS)[config["activation"]]
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
    """Self-attention, attention to `memory` if `cross`, and a feed-forward, each normalized before its sum, after it, or
    before and after ("sandwich")."""

    def __init__(self, config, cross=False, window=0):
        super().__init__()
        self.placement, self.dropout = config["norm"], config["dropout"]

        def norms():
            return nn.ModuleList(norm(config) for _ in range(2 if self.placement == "sandwich" else 1))

        self.attention, self.norms_attention = Attention(config, window=window), norms()
        if cross:
            self.cross, self.norms_cross = Attention(config, cross=True), norms()
        self.feed_forward, self.norms_feed_forward = FeedForward(config), norms()

    def branch(self, x, norms, function):
        y = function(x if self.placement == "post" else norms[0](x))
        if self.placement == "sandwich":
            y = norms[1](y)
        x = x + F.dropout(y, self.dropout, self.training)
        return norms[0](x) if self.placement == "post" else x

    def forward(self, x, mask=None, causal=False, rotation=None, bias=None, memory=None, memory_mask=None):
        x = self.branch(x, self.norms_attention, lambda x: self.attention(x, None, mask, causal, rotation, bias))
        if memory is not None:
            x = self.branch(x, self.norms_cross, lambda x: self.cross(x, memory, mask=memory_mask))
        return self.branch(x, self.norms_feed_forward, self.feed_forward)


class Stack(nn.Module):
    """Embeddings and layers of one side. `tokens` is its token table."""

    def __init__(self, config, tokens, n_layers, is_decoder=False, cross=False):
        super().__init__()
        d, positions = config["d_model"], config["positions"]
        self.tokens, self.dropout = tokens, config["dropout"]
        self.scale = math.sqrt(d) if config["scale_embedding"] else 1.0
        self.positions = nn.Embedding(config["max_positions"], d) if positions == "learned" else None
        self.register_buffer("sinusoids", sinusoids(config) if positions.startswith("sinusoidal") else None)
        self.register_buffer("rotation", rotations(config) if positions == "rotary" else None)
        self.register_buffer("local_rotation", rotations(config, True) if positions == "rotary" else None)
        self.relative = Relative(config, is_decoder) if positions == "relative" else None
        n_types = config["n_token_types"]
        self.types = nn.Embedding(n_types, d) if n_types > 0 else None
        self.norm_embedding = norm(config) if config["embedding_norm"] else nn.Identity()
        every = config.get("global_layer_every", 0)
        windows = [0 if every and (i + 1) % every == 0 else config.get("attention_window", 0) for i in range(n_layers)]
        self.layers = nn.ModuleList(Layer(config, cross, window if is_decoder else 0) for window in windows)
        self.norm = nn.Identity() if config["norm"] == "post" else norm(config)
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
        if self.relative is not None:
            options["bias"] = self.relative(ids.shape[1])
        for layer in self.layers:
            options["rotation"] = self.local_rotation if layer.attention.window else self.rotation
            if self.checkpointing == "off":
                x = layer(x, **options)
            else:
                how = CHECKPOINTING[self.checkpointing]
                x = checkpoint(layer, x, use_reentrant=False, **how, **options)
        return self.norm(x)


class Transformer(nn.Module):
    """The model of a `config.json`. `forward` returns the mean loss over the labels that are not `ignored`.

    `checkpointing` is "off", "selective" or "layer". At most `max_labels` labels of a batch count; the head of an encoder
    then reads as many positions, as fairseq's does.
    """

    def __init__(self, config, label_smoothing=0.0, ignored=-1, checkpointing="off", max_labels=None):
        super().__init__()
        self.max_labels = max_labels
        if config.get("prompt_tokens") or config.get("n_classes"):
            raise SystemExit("learned prompts and classes are not part of the PyTorch baseline")
        d, kind = config["d_model"], config["architecture"]
        self.cap, self.scale = config.get("logits_softcap", 0), d**-0.5 if config.get("scale_output") else 1.0
        self.kind, self.label_smoothing, self.ignored = kind, label_smoothing, ignored
        self.pad = config["pad_id"]
        source, target, tied = config["source_vocab_size"], config["target_vocab_size"], config["tie_embeddings"]
        own = nn.Embedding(source if kind == "encoder_only" else target, d)

        if kind == "encoder_decoder":
            other = own if tied in ("three_way", "inputs") else nn.Embedding(source, d)
            self.encoder = Stack(config, other, config["n_encoder_layers"])
            self.decoder = Stack(config, own, config["n_decoder_layers"], is_decoder=True, cross=True)
        elif kind == "decoder_only":
            self.decoder = Stack(config, own, config["n_decoder_layers"], is_decoder=True)
        else:
            self.encoder = Stack(config, own, config["n_encoder_layers"])
            self.head_in, self.head_norm = nn.Linear(d, d, config["bias"]), norm(config)
            self.head_activation = {**ACTIVATIONS, **GATES}[config["activation"]]

        self.out = nn.Linear(d, own.num_embeddings, bias=kind == "encoder_only")
        if tied not in ("none", "inputs"):
            self.out.weight = own.weight
        for module in self.modules():
            if isinstance(module, Stack):
                module.checkpointing = checkpointing
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=d**-0.5 if config["scale_embedding"] else 0.02)

    def prepare(self, t, device):
        """Makes what rows of `t` positions share."""
        for module in self.modules():
            if isinstance(module, Attention):
                module.prepare(t, device)

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
            x = self.encoder(inputs[0])

        x, labels = x.flatten(0, 1), labels.flatten()
        if self.kind == "encoder_only":
            if self.max_labels is not None:
                # Labels that count come first. Unlike `x[labels != ignored]`, this has one shape and does not wait for the GPU.
                places = torch.argsort((labels == self.ignored).int(), stable=True)[: self.max_labels]
                x, labels = x[places], labels[places]
            x = self.head_norm(self.head_activation(self.head_in(x)))

        logits = bounded(self.out(x * self.scale).float(), self.cap)
        return F.cross_entropy(logits, labels, ignore_index=self.ignored, label_smoothing=self.label_smoothing)
