from typing import Any

from numpy.typing import ArrayLike, NDArray

def solve(
    M: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    basis: ArrayLike | None = None,
    threads: int = 1,
    max_pivots: int = 0,
    time_limit: float = 0.0,
    balance: float = 1e-9,
    mass_tolerance: float = -1.0,
) -> tuple[NDArray[Any], ...]: ...
def solve_points(
    X: ArrayLike,
    Y: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    metric: int,
    basis: ArrayLike | None = None,
    threads: int = 1,
    max_pivots: int = 0,
    time_limit: float = 0.0,
    balance: float = 1e-9,
    mass_tolerance: float = -1.0,
) -> tuple[NDArray[Any], ...]: ...
def message(
    status: int, row: int, column: int, sum_a: float = 0.0, sum_b: float = 0.0, /
) -> str: ...
def isa(name: str | None = None, /) -> str: ...
