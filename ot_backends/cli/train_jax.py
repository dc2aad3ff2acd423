"""The demo's training code in JAX: one jitted step."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm  # type: ignore[import-untyped]

from .. import solve
from .digits import Batches, Digits, Float

__all__ = ["gradient", "train"]

_BETA, _BETA_SQUARE, _EPS = 0.9, 0.99, 1e-8


class State(NamedTuple):
    """All that a step changes: the logits, Adam's moments, and a warm basis for each image."""

    theta: jax.Array  # (10, 64): the barycentre of digit k is softmax(theta[k])
    mean: jax.Array
    square: jax.Array
    bases: jax.Array  # (N, 64 + 64): the optimal tree when the image was last seen


def batch_loss(
    theta: jax.Array, images: jax.Array, labels: jax.Array, cost: jax.Array, bases: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the mean exact transport loss from images to their barycentres, and the new bases."""

    def one(image: jax.Array, label: jax.Array, basis: jax.Array) -> tuple[jax.Array, jax.Array]:
        result = solve(cost, jax.nn.softmax(theta[label]), image, basis=basis)
        return result.value, result.basis

    losses, bases = jax.vmap(one)(images, labels, bases)
    return losses.mean(), bases


@jax.jit
def step(
    state: State, k: Any, rate: Any, index: jax.Array, images: jax.Array, labels: jax.Array,
    cost: jax.Array,
) -> tuple[State, jax.Array]:  # fmt: skip
    """Take one step of Adam on the minibatch `index`; return the new state and the loss."""
    (loss, bases), grad = jax.value_and_grad(batch_loss, has_aux=True)(
        state.theta, images[index], labels[index], cost, state.bases[index]
    )
    mean = _BETA * state.mean + (1 - _BETA) * grad
    square = _BETA_SQUARE * state.square + (1 - _BETA_SQUARE) * grad**2
    direction = (mean / (1 - _BETA ** (k + 1))) / (
        jnp.sqrt(square / (1 - _BETA_SQUARE ** (k + 1))) + _EPS
    )
    theta = state.theta - rate * direction
    return State(theta, mean, square, state.bases.at[index].set(bases)), loss


def train(theta: Float, digits: Digits, batches: Batches) -> tuple[Float, list[float]]:
    """Learn from the logits `theta`; return the barycentres (10, 64) and the loss of each step."""
    images, labels, cost = map(jnp.asarray, (digits.images, digits.labels, digits.cost))
    cold = jnp.full((len(images), sum(cost.shape)), -1, jnp.int32)  # no tree: a cold start
    zeros = jnp.zeros_like(theta)
    state = State(jnp.asarray(theta), zeros, zeros, cold)
    losses: list[float] = []
    bar = tqdm(zip(batches.rates, batches.indices, strict=True), "JAX", len(batches.rates))
    for k, (rate, index) in enumerate(bar):
        state, loss = step(state, k, rate, index, images, labels, cost)
        losses.append(float(loss))
        bar.set_postfix(loss=f"{losses[-1]:.4f}", refresh=False)
    return np.asarray(jax.nn.softmax(state.theta)), losses


def gradient(theta: Float, images: Float, labels: Any, cost: Float) -> Float:
    """Return the gradient (10, 64) of the training loss in the logits."""
    cold = jnp.full((len(images), sum(cost.shape)), -1, jnp.int32)
    arguments = map(jnp.asarray, (theta, images, labels, cost))
    grad, _ = jax.jit(jax.grad(batch_loss, has_aux=True))(*arguments, cold)
    return np.asarray(grad)
