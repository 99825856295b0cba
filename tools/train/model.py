"""The retrieval model: a small decoder of the `llama` architecture, as the GGUF file describes it.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


# At the start every embedding has this component in common, which queries and keys can rely on.
CONSTANT = 0.5
LOOK_BACK_HEADS = 6  # of layer 0: they begin by looking 1, 2, ... tokens back
LOOK_BACK_PAIRS = 8  # of rotation pairs, the fastest
LOOK_BACK_LOGIT = 5.0  # that each pair adds at the right distance


@dataclass(frozen=True)
class ModelShape:
    """Sizes of the model; the names are those of the GGUF keys where one exists."""

    vocab_size: int = 2048
    d_model: int = 256
    n_layers: int = 4
    n_q_heads: int = 8
    n_kv_heads: int = 2
    head_dim: int = 64
    d_ffn: int = 512
    rope_base: float = 1e6
    rms_eps: float = 1e-5
    rope_factor: float = 1.0  # YaRN's, above 1 to go beyond rope_original_context
    rope_original_context: int = 0


def rope_tables(length: int, shape: ModelShape) -> tuple[Tensor, Tensor]:
    """cos and sin of every rotation angle, [length, head_dim / 2], YaRN where a factor is given.

    YaRN (Peng et al. 2023, arXiv:2309.00071) as llama.cpp computes it: pairs that turn less than
    once within the original context are slowed by the factor, those that turn 32 times are kept,
    between them it is a ramp; queries and keys grow by 1 + 0.1 ln(factor).
    """
    half = shape.head_dim // 2
    pair = torch.arange(half, dtype=torch.float64)
    angle = shape.rope_base ** (-pair / half)
    gain = 1.0
    if shape.rope_factor != 1.0:
        def pair_of(turns: float) -> float:
            wave = shape.rope_original_context / (2 * math.pi * turns)
            return half * math.log(wave) / math.log(shape.rope_base)

        low = max(0, math.floor(pair_of(32.0)))
        high = min(shape.head_dim - 1, math.ceil(pair_of(1.0)))
        slowed = ((pair - low) / max(0.001, high - low)).clamp(0.0, 1.0)
        angle = angle * (1.0 - slowed + slowed / shape.rope_factor)
        gain = 1.0 + 0.1 * math.log(shape.rope_factor)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * angle[None, :]
    return (gain * angles.cos()).float(), (gain * angles.sin()).float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE on [batch, heads, tokens, head_dim], pairing element i with i + head_dim / 2.

    The `llama` architecture pairs neighbours; `export_gguf` reorders the rows of wq and wk, which
    is the same rotation. Halves are faster here because each is a contiguous slice.
    """
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class RmsNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return (x.float() * scale * self.weight).to(x.dtype)


class Layer(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        d, q_width = shape.d_model, shape.n_q_heads * shape.head_dim
        kv_width = shape.n_kv_heads * shape.head_dim
        self.shape = shape
        self.attn_norm = RmsNorm(d, shape.rms_eps)
        self.wq = nn.Linear(d, q_width, bias=False)
        self.wk = nn.Linear(d, kv_width, bias=False)
        self.wv = nn.Linear(d, kv_width, bias=False)
        self.wo = nn.Linear(q_width, d, bias=False)
        self.ffn_norm = RmsNorm(d, shape.rms_eps)
        self.w_gate = nn.Linear(d, shape.d_ffn, bias=False)
        self.w_up = nn.Linear(d, shape.d_ffn, bias=False)
        self.w_down = nn.Linear(shape.d_ffn, d, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attend(self.attn_norm(x), cos, sin)
        y = self.ffn_norm(x)
        return x + self.w_down(F.silu(self.w_gate(y)) * self.w_up(y))

    def attend(self, y: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, tokens, _ = y.shape
        s = self.shape

        def heads(rows: Tensor, n: int) -> Tensor:
            return rows.view(batch, tokens, n, s.head_dim).transpose(1, 2)

        q = rotate(heads(self.wq(y), s.n_q_heads), cos, sin)
        k = rotate(heads(self.wk(y), s.n_kv_heads), cos, sin)
        v = heads(self.wv(y), s.n_kv_heads)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.wo(o.transpose(1, 2).reshape(batch, tokens, -1))


class RetrievalModel(nn.Module):
    """Token ids in, final hidden rows out; `logits` maps them to tokens (tied embedding)."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab_size, shape.d_model)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.n_layers))
        self.norm = RmsNorm(shape.d_model, shape.rms_eps)
        self._tables: dict[tuple[int, torch.dtype], tuple[Tensor, Tensor]] = {}
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Layer 0 begins with heads that look a fixed number of tokens back; all is trained.

        Without them the first third of a CPU's budget goes by until such heads form by chance, and
        only then can later layers match keys of several tokens (Olsson et al. 2022,
        arXiv:2209.11895, on why induction needs them). Outputs begin near zero, so that the token
        itself is what the residual stream says at first.
        """
        d = self.shape.d_model
        nn.init.normal_(self.embedding.weight, std=1.0 / math.sqrt(d))
        rows = self.embedding.weight.data
        rows[:, 0] = 0.0
        rows /= rows.norm(dim=1, keepdim=True)  # equal lengths, or look_back would favour some
        rows[:, 0] = CONSTANT
        nn.init.constant_(self.norm.weight, 0.3)
        for layer in self.layers:
            for weight in layer.parameters():
                if weight.ndim == 2:
                    nn.init.normal_(weight, std=1.0 / math.sqrt(weight.shape[1]))
            nn.init.zeros_(layer.w_down.weight)
            nn.init.zeros_(layer.wo.weight)
        self.look_back(self.layers[0])

    def look_back(self, layer: Layer) -> None:
        """q . k = sum_i cos((distance - offset) * angle_i) over the fastest angles."""
        s = self.shape
        half = s.head_dim // 2
        angles = s.rope_base ** (-torch.arange(LOOK_BACK_PAIRS) / half)
        gain = math.sqrt(LOOK_BACK_LOGIT * math.sqrt(s.head_dim)) * math.hypot(1.0, CONSTANT) / (
            CONSTANT * math.sqrt(s.d_model))
        first, second = slice(0, LOOK_BACK_PAIRS), slice(half, half + LOOK_BACK_PAIRS)
        for head in layer.wk.weight.data.view(s.n_kv_heads, s.head_dim, -1):
            head[first], head[second] = 0.0, 0.0
            head[first, 0] = gain
        for offset, head in enumerate(layer.wq.weight.data.view(s.n_q_heads, s.head_dim, -1), 1):
            if offset > LOOK_BACK_HEADS:
                break
            head.zero_()
            head[first, 0] = gain * torch.cos(offset * angles)
            head[second, 0] = -gain * torch.sin(offset * angles)
        nn.init.normal_(layer.wo.weight, std=0.005)

    def tables(self, length: int, like: Tensor) -> tuple[Tensor, Tensor]:
        key = (length, like.dtype)
        if key not in self._tables:
            cos, sin = rope_tables(length, self.shape)
            self._tables[key] = cos.to(like), sin.to(like)
        return self._tables[key]

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        cos, sin = self.tables(ids.shape[1], x)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)

    def logits(self, rows: Tensor) -> Tensor:
        return F.linear(rows, self.embedding.weight)
