"""Input that has no answer, and which argument the error must name; and odd input that has one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from problems import prob

__all__ = ["ODD_BUT_RIGHT", "VALUES", "names_argument"]

Args = tuple[np.ndarray, np.ndarray, np.ndarray]
P = prob()


def _put(which: str, where: Any, value: Any) -> Args:
    args = {"a": P.a.copy(), "b": P.b.copy(), "M": P.M.copy()}
    args[which][where] = value
    return args["a"], args["b"], args["M"]


# Same shapes and types as a good problem: seen only when the numbers are there, inside a trace.
VALUES: dict[str, tuple[str, Args]] = {
    "NaN in M at [0, 0]": ("M", _put("M", (0, 0), np.nan)),
    "NaN in the middle of M": ("M", _put("M", (3, 2), np.nan)),
    "NaN in the last cell of M": ("M", _put("M", (5, 4), np.nan)),
    "a row of NaN in M": ("M", _put("M", 2, np.nan)),
    "M all NaN": ("M", _put("M", ..., np.nan)),
    "-inf in M": ("M", _put("M", (1, 1), -np.inf)),
    "inf and -inf in M": ("M", _put("M", (slice(None), [0, 1]), [np.inf, -np.inf])),
    "a row of inf in M": ("M", _put("M", 2, np.inf)),
    "a column of inf in M": ("M", _put("M", (slice(None), 1), np.inf)),
    "M all inf": ("M", _put("M", ..., np.inf)),
    "NaN in a": ("a", _put("a", 4, np.nan)),
    "NaN in b": ("b", _put("b", 0, np.nan)),
    "inf in a": ("a", _put("a", 0, np.inf)),
    "inf in b": ("b", _put("b", 4, np.inf)),
    "-inf in a": ("a", _put("a", 0, -np.inf)),
    "a negative weight in a": ("a", _put("a", 3, -0.1)),
    "a negative weight in b": ("b", _put("b", 3, -1e-9)),
    "a all zero": ("a", _put("a", ..., 0.0)),
    "b all zero": ("b", _put("b", ..., 0.0)),
    "both all zero": ("a", (0 * P.a, 0 * P.b, P.M)),
    "b of twice the mass": ("b", (P.a, 2 * P.b, P.M)),
    "masses 1e-4 apart": ("a", (P.a * (1 + 1e-4), P.b, P.M)),
}


def names_argument(message: str, name: str) -> bool:
    """Whether the message speaks of the argument `name` (of "a" the word alone proves nothing)."""
    text = message.replace("`", "").replace("'", "").replace('"', "")
    if name == "M":
        return any(f"M{after}" in text for after in (" ", "[", ":", ",", ";", "."))
    if "sum(a)" in text or " and b " in text or "a and b" in text:
        return True
    return any(
        f"{before}{name}{after}" in f" {text}"
        for before in (" ", "(")
        for after in (
            " must",
            " has",
            " is",
            " sums",
            " holds",
            " contains",
            "[",
            ":",
            " (",
            " and",
        )
    )


def _views(x: np.ndarray) -> list[np.ndarray]:
    """The same numbers with other strides, order, byte order and flags."""
    spaced = np.zeros(tuple(2 * s for s in x.shape))
    spaced[tuple(slice(None, None, 2) for _ in x.shape)] = x
    frozen = x.copy()
    frozen.flags.writeable = False
    return [
        np.asfortranarray(x),
        np.flip(np.flip(x).copy()),
        spaced[tuple(slice(None, None, 2) for _ in x.shape)],
        frozen,
        x.astype(">f8"),
        np.broadcast_to(x, (3, *x.shape))[1],
    ]


# Rows of the table of failures that have a right answer: name -> change of (a, b, M).
ODD_BUT_RIGHT: dict[str, Callable[[Args], Args]] = {
    **{f"view {k}": lambda args, k=k: tuple(_views(x)[k] for x in args) for k in range(6)},
    "float32": lambda args: tuple(x.astype(np.float32) for x in args),
    "M times 1e-9": lambda args: (*args[:2], args[2] * 1e-9),
    "M times 1e-12": lambda args: (*args[:2], args[2] * 1e-12),
    "M times 1e-15": lambda args: (*args[:2], args[2] * 1e-15),
    "all of M under -5": lambda args: (*args[:2], -5 - args[2]),
    "all of M under -5000": lambda args: (*args[:2], -5000 - args[2]),
    "masses 5e-9 apart": lambda args: (args[0], args[1] * (1 + 5e-9), args[2]),
    "masses of 1e12": lambda args: (args[0] * 1e12, args[1] * 1e12, args[2]),
    "masses of 1e-12": lambda args: (args[0] * 1e-12, args[1] * 1e-12, args[2]),
    "masses of 1e-300": lambda args: (args[0] * 1e-300, args[1] * 1e-300, args[2]),
    "one inf in M": lambda args: (
        *args[:2],
        np.where(np.eye(6, 5) * [1, 0, 0, 0, 0], np.inf, args[2]),
    ),
    "negative zeros": lambda args: (*args[:2], np.where(args[2] < 0.5, -0.0, args[2])),
    "subnormal weights": lambda args: (args[0] + 5e-324 * np.eye(6)[0], args[1], args[2]),
    "subnormal costs": lambda args: (*args[:2], np.where(args[2] < 0.3, 5e-324, args[2])),
}
