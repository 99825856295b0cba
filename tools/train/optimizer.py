"""Muon for the matrices of the layers, AdamW for the embedding and the norms.

Muon: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon; the scale 0.2 * sqrt(max side)
that lets it share AdamW's learning rate: Liu et al. 2025, arXiv:2502.16982.
SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


def orthogonal(update: Tensor, steps: int = 5) -> Tensor:
    """Newton-Schulz iteration towards the nearest matrix with singular values near 1."""
    wide = update.bfloat16()
    tall = wide.shape[0] > wide.shape[1]
    if tall:
        wide = wide.T
    wide = wide / (wide.norm() + 1e-7)
    for _ in range(steps):
        gram = wide @ wide.T
        wide = 3.4445 * wide + (-4.7750 * gram + 2.0315 * (gram @ gram)) @ wide
    return (wide.T if tall else wide).float()


class Muon(Optimizer):
    def __init__(self, matrices: list[nn.Parameter], lr: float, momentum: float = 0.95,
                 weight_decay: float = 0.0) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                average = state.setdefault("average", torch.zeros_like(weight))
                average.lerp_(weight.grad, 1 - group["momentum"])
                nesterov = weight.grad.lerp(average, group["momentum"])
                scale = 0.2 * max(weight.shape) ** 0.5
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.add_(orthogonal(nesterov), alpha=-group["lr"] * scale)


def make_optimizers(model: nn.Module, weight_decay: float) -> list[Optimizer]:
    """The learning rate is set before each step, by the schedule."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "layers." in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "layers." not in name]
    return [Muon(matrices, lr=0.0, weight_decay=weight_decay),
            torch.optim.AdamW(others, lr=0.0, betas=(0.9, 0.95), weight_decay=0.0)]
