"""The demo's data: handwritten digits as histograms over 8 x 8 pixels, and the ground cost."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["CLASSES", "PIXELS", "Batches", "Digits", "batches", "class_means", "load"]

Float = NDArray[np.float32]
Int = NDArray[np.int32]

CLASSES, SIDE = 10, 8
PIXELS = SIDE * SIDE


class Digits(NamedTuple):
    """Images of total mass 1 with their labels, to learn from and held out."""

    images: Float  # (N, 64)
    labels: Int  # (N,)
    held_out: Float  # (K, 64)
    held_out_labels: Int  # (K,)
    cost: Float  # (64, 64): squared distance between pixels


class Batches(NamedTuple):
    """The minibatches of a run and its learning rates, the same for every framework."""

    indices: Int  # (steps, batch)
    rates: Float  # (steps,)


def load(train: int, test: int, seed: int) -> Digits:
    """Load scikit-learn's digits (UCI, 1,797 images), shuffled and split."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    bunch: Any = load_digits()
    chosen = np.random.default_rng(seed).permutation(len(bunch.target))
    if train + test > len(chosen):
        raise ValueError(f"train + test must be at most {len(chosen)}, but is {train + test}")
    images = (bunch.data / bunch.data.sum(axis=1, keepdims=True)).astype(np.float32)
    labels = bunch.target.astype(np.int32)
    learn, check = chosen[:train], chosen[train : train + test]
    return Digits(images[learn], labels[learn], images[check], labels[check], _ground_cost())


def _ground_cost() -> Float:
    pixel = np.stack(np.divmod(np.arange(PIXELS), SIDE), axis=-1)
    apart = pixel[:, None, :] - pixel[None, :, :]
    cost: Float = np.sum(apart**2, axis=-1).astype(np.float32)
    return cost


def class_means(digits: Digits) -> Float:
    """Return the mean image of each class (10, 64): the Euclidean barycentres."""
    return np.stack([digits.images[digits.labels == k].mean(axis=0) for k in range(CLASSES)])


def batches(images: int, size: int, steps: int, rate: float, seed: int) -> Batches:
    """Draw `steps` minibatches, each pass over the images in a new order; the rate falls to 0."""
    rng = np.random.default_rng(seed)
    per_pass = images // size
    passes = -(-steps // per_pass)
    drawn = [rng.permutation(images)[: per_pass * size].reshape(-1, size) for _ in range(passes)]
    rates = rate * (1 + np.cos(np.pi * np.arange(steps) / steps)) / 2
    return Batches(np.concatenate(drawn)[:steps].astype(np.int32), rates.astype(np.float32))
