"""``demo``: learn a barycentre of each handwritten digit through the exact transport loss."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .. import solve
from . import digits as data
from . import missing
from .digits import Digits, Float
from .reference import slope, transport_value

HELP = "learn barycentres of handwritten digits in JAX and Torch, check and draw them"

_PICTURE = "ot_backends_digits.png"
_SEED = 0
_RATE = 0.2
_TOLERANCE = 1e-5  # of the gradient in float32, relative to the largest slope

#: The progress bars write to stderr: keep the order where both go to one file.
_say = partial(print, flush=True)


class _Size(NamedTuple):
    """How much of everything; `quick` only shows that it runs."""

    train: int
    test: int
    batch: int
    steps: int
    checked: int  # images and directions of the check of the gradient
    directions: int


_FULL = _Size(train=1000, test=797, batch=100, steps=100, checked=10, directions=8)
_QUICK = _Size(train=40, test=20, batch=20, steps=3, checked=3, directions=2)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--output", type=Path, default=Path(_PICTURE), metavar="PATH",
        help="file or folder for the picture (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--quick", action="store_true",
        help="a few steps on a few images: shows that it runs, learns little",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Train, check, compare, draw; return the exit status."""
    absent = missing("jax", "sklearn", "matplotlib", "tqdm")
    if absent:
        print(
            f"the demo needs {' and '.join(absent)}, not installed here; "
            'pip install "ot_backends[demo]"',
            file=sys.stderr,
        )
        return 1
    output = args.output / _PICTURE if args.output.is_dir() else args.output
    if not output.parent.is_dir():
        print(f"--output: there is no folder {output.parent}; make it first", file=sys.stderr)
        return 1
    began = time.monotonic()
    size = _QUICK if args.quick else _FULL
    digits = data.load(size.train, size.test, _SEED)
    _say(
        f"Handwritten digits, 8 x 8: {size.train} to learn from, {size.test} held out. The cost of "
        "moving mass\nfrom pixel to pixel is their squared distance.\n"
    )
    theta = np.random.default_rng(_SEED).standard_normal((data.CLASSES, data.PIXELS))
    learnt, worst = _learn(theta.astype(np.float32), digits, size)
    means = data.class_means(digits)
    title = _compare(learnt["JAX"], means, digits)
    rows = {f"exact OT, {name}": images for name, images in learnt.items()}

    from .picture import draw

    draw({**rows, "Euclidean mean": means}, title, output)
    _say(f"\nThe learnt digits: {output}   ({time.monotonic() - began:.0f} s in all)")
    if not worst <= _TOLERANCE:
        print(f"the gradient is off by {worst:.1e}, more than {_TOLERANCE:.0e}", file=sys.stderr)
        return 1
    return 0


# ---- learning


def _learn(theta: Float, digits: Digits, size: _Size) -> tuple[dict[str, Float], float]:
    """Train from the same start on the same minibatches in each installed framework.

    Return the barycentres and the largest deviation of a gradient.
    """
    batches = data.batches(size.train, size.batch, size.steps, _RATE, _SEED)
    few = digits.images[: size.checked], digits.labels[: size.checked]
    expected = _differences(theta, *few, digits.cost, size.directions)
    learnt, deviations = {}, []
    for name in ("JAX", "Torch"):
        if name == "Torch" and missing("torch"):
            _say('Torch: skipped, not installed (pip install "ot_backends[torch]")')
            continue
        framework = importlib.import_module(f".train_{name.lower()}", __package__)
        gradients = framework.gradient(theta, *few, digits.cost)
        found = np.array([np.sum(gradients * d) for d in expected.directions])
        off = np.max(np.abs(found - expected.slopes)) / np.max(np.abs(expected.slopes))
        deviations.append(float(off))
        _say(
            f"{name}: largest deviation of the gradient from finite differences: {off:.1e}\n"
            f"  (relative, float32, {size.checked} images, {len(found)} random directions from the "
            "random start,\n  central differences of the loss as SciPy's HiGHS solves it)"
        )
        start = time.monotonic()
        learnt[name], losses = framework.train(theta, digits, batches)
        last = losses[-(size.train // size.batch) :]
        _say(
            f"{name}: loss {losses[0]:.4f} at the start, {np.mean(last):.4f} in the last pass; "
            f"{size.steps} steps of {size.batch} images in {time.monotonic() - start:.1f} s\n"
        )
    if len(learnt) == 2:
        apart = np.abs(learnt["JAX"] - learnt["Torch"]).sum(axis=1).max() / 2
        _say(f"JAX and Torch learnt the same to {apart:.1e} (largest total variation)\n")
    return learnt, float(np.max(deviations))


class _Differences(NamedTuple):
    directions: Any  # (k, 10, 64)
    slopes: Any  # (k,)


def _differences(theta: Float, images: Float, labels: Any, cost: Float, k: int) -> _Differences:
    """Return derivatives of the training loss along random directions, by differences of HiGHS.

    The loss is piecewise smooth in the logits, with a kink wherever a flow of some optimal basis
    reaches zero. Barycentres end at such kinks, where no difference is the gradient; random logits
    are away from them, so the check is made there, with a step that moves no flow to zero.
    """
    weights, M = images.astype(np.float64), cost.astype(np.float64)

    def loss(logits: Any) -> float:
        return float(np.mean([
            transport_value(_softmax(logits[label]), image, M)
            for label, image in zip(labels, weights, strict=True)
        ]))  # fmt: skip

    def along(direction: Any) -> float:
        return slope(lambda t: loss(theta + t * direction), 1e-6)

    directions = np.random.default_rng(_SEED + 1).standard_normal((k, *theta.shape))
    slopes = np.array([along(d) for d in directions])
    return _Differences(directions, slopes)


def _softmax(x: Any) -> Any:
    e = np.exp(x - x.max())
    return e / e.sum()


# ---- comparing


def _compare(barycentres: Float, means: Float, digits: Digits) -> str:
    """Print how many held-out digits are nearest to the centroid of their class; return a title."""
    exact, euclidean = {}, {}
    for name, centroids in (("barycentres", barycentres), ("means", means)):
        near_exact = _transport_distances(centroids, digits, f"OT to {name}").argmin(axis=1)
        apart = digits.held_out[:, None, :] - centroids[None, :, :]
        near_euclidean = np.sum(apart**2, axis=-1).argmin(axis=1)
        exact[name] = 100 * np.mean(near_exact == digits.held_out_labels)
        euclidean[name] = 100 * np.mean(near_euclidean == digits.held_out_labels)
    _say(f"Nearest centroid, {len(digits.held_out)} held-out digits, % right:")
    _say(f"{'':22}{'OT barycentres':>16}{'Euclidean means':>18}")
    for label, row in (("exact OT distance", exact), ("Euclidean distance", euclidean)):
        _say(f"{label:22}{row['barycentres']:>16.1f}{row['means']:>18.1f}")
    if exact["barycentres"] < euclidean["means"]:
        _say(
            "Euclidean is ahead on these digits, which come centred and scaled to one frame: "
            "pixels can be\ncompared one by one."
        )
    return (
        "Averages of handwritten digits. Nearest centroid on held-out digits: "
        f"exact OT {exact['barycentres']:.1f} %, Euclidean {euclidean['means']:.1f} %"
    )


def _transport_distances(centroids: Float, digits: Digits, title: str) -> Float:
    """Return exact transport costs (K, 10) between held-out images and centroids, in NumPy."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    chunks = np.array_split(digits.held_out, max(1, len(digits.held_out) // 40))
    distances = [
        solve(digits.cost, centroids[None], chunk[:, None]).value for chunk in tqdm(chunks, title)
    ]
    return np.concatenate(distances)
