"""The demo's training code in Torch: the same losses, batches and optimiser as in JAX."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tqdm import tqdm  # type: ignore[import-untyped]

from .. import solve
from .digits import Batches, Digits, Float

__all__ = ["gradient", "train"]


def batch_loss(
    theta: torch.Tensor, images: torch.Tensor, labels: torch.Tensor, cost: torch.Tensor,
    bases: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return the mean exact transport loss from images to their barycentres, and the new bases."""
    result = solve(cost, theta[labels].softmax(-1), images, basis=bases)
    return result.value.mean(), result.basis


def train(theta: Float, digits: Digits, batches: Batches) -> tuple[Float, list[float]]:
    """Learn from the logits `theta`; return the barycentres (10, 64) and the loss of each step."""
    images, labels, cost = map(torch.tensor, (digits.images, digits.labels, digits.cost))
    indices = torch.tensor(batches.indices)
    logits = torch.tensor(theta, requires_grad=True)
    bases = torch.full((len(images), sum(cost.shape)), -1, dtype=torch.int32)  # a cold start
    adam = torch.optim.Adam([logits], betas=(0.9, 0.99))
    losses: list[float] = []
    bar = tqdm(zip(batches.rates, indices, strict=True), "Torch", len(batches.rates))
    for rate, index in bar:
        adam.param_groups[0]["lr"] = float(rate)
        adam.zero_grad()
        loss, bases[index] = batch_loss(logits, images[index], labels[index], cost, bases[index])
        loss.backward()
        adam.step()
        losses.append(loss.item())
        bar.set_postfix(loss=f"{losses[-1]:.4f}", refresh=False)
    return logits.detach().softmax(-1).numpy(), losses


def gradient(theta: Float, images: Float, labels: Any, cost: Float) -> Float:
    """Return the gradient (10, 64) of the training loss in the logits."""
    logits = torch.tensor(theta, requires_grad=True)
    cold = torch.full((len(images), sum(cost.shape)), -1, dtype=torch.int32)
    images_, labels_, cost_ = map(torch.tensor, (images, labels, cost))
    loss, _ = batch_loss(logits, images_, labels_, cost_, cold)
    loss.backward()
    return np.asarray(logits.grad)
