"""The two models of the baseline: GPT-2 124M and Transformer base, as PyTorch users write them.

Shapes: B rows, T positions, D features of the model, H heads, V entries of the vocabulary.
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

# As PyTorch recommends for products that remain in f32.
torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = True


class Block(nn.Module):
    """A pre-norm layer: self-attention, cross-attention if `cross`, and a feed-forward with GELU (tanh)."""

    def __init__(self, d_model, n_heads, d_ff, dropout=0.0, cross=False):
        super().__init__()
        self.n_heads, self.dropout, self.cross = n_heads, dropout, cross

        self.norm_self = nn.LayerNorm(d_model)
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.self_out = nn.Linear(d_model, d_model)

        if cross:
            self.norm_cross = nn.LayerNorm(d_model)
            self.cross_query = nn.Linear(d_model, d_model)
            self.cross_key_value = nn.Linear(d_model, 2 * d_model)
            self.cross_out = nn.Linear(d_model, d_model)

        self.norm_ff = nn.LayerNorm(d_model)
        self.ff_in = nn.Linear(d_model, d_ff)
        self.ff_out = nn.Linear(d_ff, d_model)

    def split_heads(self, x):
        """`[B, T, D]` -> `[B, H, T, D / H]`"""
        b, t, d = x.shape
        return x.view(b, t, self.n_heads, d // self.n_heads).transpose(1, 2)

    def merge_heads(self, x):
        """`[B, H, T, D / H]` -> `[B, T, D]`"""
        b, h, t, e = x.shape
        return x.transpose(1, 2).reshape(b, t, h * e)

    def drop(self, x):
        return F.dropout(x, self.dropout, self.training)

    def attend(self, q, k, v, **options):
        heads = F.scaled_dot_product_attention(
            self.split_heads(q), self.split_heads(k), self.split_heads(v), **options
        )
        return self.merge_heads(heads)

    def forward(self, x, mask=None, causal=False, memory=None, memory_mask=None):
        """`x`: `[B, T, D]`; `memory`: `[B, S, D]`, the encoder's output. Masks are true at keys to attend to."""
        q, k, v = self.qkv(self.norm_self(x)).chunk(3, -1)
        x = x + self.drop(self.self_out(self.attend(q, k, v, attn_mask=mask, is_causal=causal)))

        if self.cross:
            q = self.cross_query(self.norm_cross(x))
            k, v = self.cross_key_value(memory).chunk(2, -1)
            x = x + self.drop(self.cross_out(self.attend(q, k, v, attn_mask=memory_mask)))

        hidden = F.gelu(self.ff_in(self.norm_ff(x)), approximate="tanh")
        return x + self.drop(self.ff_out(self.drop(hidden)))


class GPT(nn.Module):
    """GPT-2 124M: the token table is tied to the output projection; the vocabulary is padded to 50,304."""

    def __init__(self, vocab_size=50304, max_len=1024, n_layers=12, d_model=768, n_heads=12):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.positions = nn.Embedding(max_len, d_model)
        self.blocks = nn.ModuleList(Block(d_model, n_heads, 4 * d_model) for _ in range(n_layers))
        self.norm = nn.LayerNorm(d_model)

    def forward(self, x, y):
        """The mean cross-entropy of the labels `y` after the tokens `x`, both `[B, T]`."""
        z = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            z = block(z, causal=True)

        logits = F.linear(self.norm(z), self.tokens.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), y.view(-1))


class Translator(nn.Module):
    """Transformer base, pre-norm, with one table for sources, targets and the output projection.

    Token 0 is padding. Label smoothing is 0.1.
    """

    def __init__(self, vocab_size=32000, max_len=512, n_layers=6, d_model=512, n_heads=8, d_ff=2048, dropout=0.1):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.positions = nn.Embedding(max_len, d_model)
        self.dropout, self.d_model = dropout, d_model
        self.encoder = nn.ModuleList(Block(d_model, n_heads, d_ff, dropout) for _ in range(n_layers))
        self.decoder = nn.ModuleList(Block(d_model, n_heads, d_ff, dropout, True) for _ in range(n_layers))
        self.norm_encoder = nn.LayerNorm(d_model)
        self.norm_decoder = nn.LayerNorm(d_model)

    def embed(self, x):
        scaled = self.tokens(x) * math.sqrt(self.d_model)
        x = scaled + self.positions(torch.arange(x.shape[1], device=x.device))
        return F.dropout(x, self.dropout, self.training)

    def forward(self, source, target, y):
        """The mean smoothed cross-entropy of the labels `y`; all three `[B, T]`, padded with 0."""
        mask = (source != 0)[:, None, None, :]
        z = self.embed(source)
        for block in self.encoder:
            z = block(z, mask=mask)
        z = self.norm_encoder(z)

        o = self.embed(target)
        for block in self.decoder:
            o = block(o, causal=True, memory=z, memory_mask=mask)

        logits = F.linear(self.norm_decoder(o), self.tokens.weight)
        return F.cross_entropy(
            logits.view(-1, logits.shape[-1]).float(), y.view(-1), ignore_index=0, label_smoothing=0.1
        )
