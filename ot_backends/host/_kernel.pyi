from typing import Any

from numpy.typing import ArrayLike, NDArray

# status int32 (..., 3); value (...); u (..., n); v (..., m); flow (..., N - 1);
# rows, cols int32 (..., N - 1); order, size int32 (..., N); virtual bool (..., N - 1);
# basis int32 (..., N); dual, violation (...); iterations int32 (...); mass (..., 2).
# N = n + m; what has no type above is float64.
_Solved = tuple[NDArray[Any], ...]

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
    rounding: float = 1e-12,
) -> _Solved: ...
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
    rounding: float = 1e-12,
) -> _Solved: ...
def message(
    status: int, row: int, column: int, sum_a: float = 0.0, sum_b: float = 0.0, /
) -> str: ...
def isa(name: str | None = None, /) -> str: ...
