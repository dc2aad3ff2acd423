"""The demo's picture: one row of digits per way to average them."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from .digits import SIDE, Float

__all__ = ["draw"]


def draw(rows: dict[str, Float], title: str, path: Path) -> None:
    """Write a PNG with a labelled row of ten 8 x 8 images for each entry of `rows`."""
    columns = len(next(iter(rows.values())))
    figure = Figure(figsize=(columns + 2.2, 1.1 * len(rows) + 0.9), dpi=120, layout="constrained")
    figure.suptitle(title, fontsize=13)
    axes = figure.subplots(len(rows), columns, squeeze=False)
    for (label, images), row in zip(rows.items(), axes, strict=True):
        row[0].set_ylabel(label, rotation=0, ha="right", va="center", fontsize=11, labelpad=10)
        for image, ax in zip(images, row, strict=True):
            ax.imshow(image.reshape(SIDE, SIDE), cmap="gray_r", vmin=0)
            ax.set(xticks=[], yticks=[])
            ax.spines[:].set_color("0.85")
    for digit, ax in enumerate(axes[-1]):
        ax.set_xlabel(str(digit), fontsize=11)
    figure.savefig(path, format="png")
