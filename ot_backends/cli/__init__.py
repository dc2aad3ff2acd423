"""The commands of ``python -m ot_backends``, and what they share."""

from __future__ import annotations

import importlib

__all__ = ["missing"]


def missing(*modules: str) -> list[str]:
    """Return those of the modules that are not installed.

    One that is installed but broken raises its own error, which says more than "missing" would.
    """
    absent = []
    for name in modules:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != name:
                raise
            absent.append(name)
    return absent
