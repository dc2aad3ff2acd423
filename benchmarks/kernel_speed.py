"""The native kernel against POT's, interleaved in one process: ratios of process times.

    python benchmarks/kernel_speed.py                      everything
    python benchmarks/kernel_speed.py cold --sizes 256 512 --repeats 7
    python benchmarks/kernel_speed.py warm batch memory points
    python benchmarks/kernel_speed.py columns              POT's kernels alone: whole calls, warm

Every row is the median over the repeats (warm: over the steps) of both, and their ratio. The
values are compared too: a fast wrong answer stops the script.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ot.lp.emd_wrap import emd_c

from ot_backends.host import _kernel
from ot_backends.host.batch import HostSolve

Array = NDArray[np.float64]
VALUE, BASIS, ITERATIONS = 1, 10, 13


def timed(
    fn: Callable[[], Any], clock: Callable[[], float] = time.process_time
) -> tuple[float, Any]:
    begin = clock()
    result = fn()
    return clock() - begin, result


def distances(X: Array, Y: Array) -> Array:
    M = (X**2).sum(-1)[..., :, None] + (Y**2).sum(-1)[..., None, :]
    return np.ascontiguousarray(np.maximum(M - 2 * X @ np.swapaxes(Y, -1, -2), 0))


def weights(random: bool, n: int, rng: np.random.Generator) -> Array:
    w = rng.random(n) + 0.1 if random else np.ones(n)
    return w / w.sum()


def pot(M: Array, a: Array, b: Array) -> float:
    return float(emd_c(a, b, M, 10**9, 1)[1])


def same(value: float, reference: float, M: Array) -> None:
    if abs(value - reference) > 1e-9 * abs(reference) + 1e-10 * np.abs(M).max():
        raise SystemExit(f"values differ: {value!r} and {reference!r}")


def geometric_mean(x: list[float]) -> float:
    return float(np.exp(np.mean(np.log(x))))


def cold(sizes: list[int], repeats: int) -> None:
    print("cold: n, costs, weights: emd_c ms, kernel ms, ratio (pivots)")
    ratios = []
    for n in sizes:
        for costs in ("d=2", "d=32", "random"):
            for random_weights in (False, True):
                rng = np.random.default_rng(n)
                if costs == "random":
                    M = rng.random((n, n))
                else:
                    d = int(costs[2:])
                    M = distances(rng.normal(size=(n, d)), rng.normal(size=(n, d)) + 0.5)
                a, b = weights(random_weights, n, rng), weights(random_weights, n, rng)
                theirs, ours = [], []
                for _ in range(repeats):
                    t, reference = timed(lambda M=M, a=a, b=b: pot(M, a, b))
                    theirs.append(t)
                    t, r = timed(lambda M=M, a=a, b=b: _kernel.solve(M, a, b))
                    ours.append(t)
                    same(r[VALUE], reference, M)
                e, k = float(np.median(theirs)), float(np.median(ours))
                ratios.append(e / k)
                name = "random" if random_weights else "uniform"
                print(
                    f"  {n:5d} {costs:6s} {name:7s} {e * 1e3:9.2f} {k * 1e3:8.2f} {e / k:6.2f}"
                    f"   ({r[ITERATIONS]})",
                    flush=True,
                )
    print(f"  geometric mean {geometric_mean(ratios):.2f}, smallest {min(ratios):.2f}")


def sequence(
    n: int, d: int, noise: float, drift: float, random_weights: bool, steps: int
) -> list[tuple[Array, Array, Array]]:
    """A training run: X moves by `noise` each step, the weights by `drift` of their size."""
    rng = np.random.default_rng(n + d)
    X, Y = rng.normal(size=(n, d)), rng.normal(size=(n, d)) + 0.5
    a, b = weights(random_weights, n, rng), weights(random_weights, n, rng)
    out = []
    for _ in range(steps + 1):
        out.append((distances(X, Y), a, b))
        X = X + noise * rng.normal(size=X.shape)
        if drift:
            a, b = (w * np.exp(drift * rng.normal(size=n)) for w in (a, b))
            a, b = a / a.sum(), b / b.sum()
    return out


def warm(sizes: list[int], steps: int) -> None:
    print("warm from the previous basis: n, d, noise, drift, weights: emd_c ms, kernel ms, ratio")
    for n in sizes:
        for noise, drift in ((0.01, 0.0), (0.1, 0.0), (0.01, 0.02)):
            if noise == 0.1 and n > 512:
                continue
            ratios = []
            for d in (2, 32):
                for random_weights in (False, True):
                    if drift and not random_weights:
                        continue
                    problems = sequence(n, d, noise, drift, random_weights, steps)
                    basis = _kernel.solve(*problems[0])[BASIS]
                    theirs, ours = [], []
                    for M, a, b in problems[1:]:
                        t, reference = timed(lambda M=M, a=a, b=b: pot(M, a, b))
                        theirs.append(t)
                        t, r = timed(lambda M=M, a=a, b=b, s=basis: _kernel.solve(M, a, b, s))
                        ours.append(t)
                        same(r[VALUE], reference, M)
                        basis = r[BASIS]
                    e, k = float(np.median(theirs)), float(np.median(ours))
                    ratios.append(e / k)
                    name = "random" if random_weights else "uniform"
                    print(
                        f"  {n:5d} {d:3d} {noise:5.2f} {drift:5.2f} {name:7s}"
                        f" {e * 1e3:9.2f} {k * 1e3:8.3f} {e / k:7.1f}",
                        flush=True,
                    )
            print(f"        geometric mean {geometric_mean(ratios):.1f}", flush=True)


def columns(sizes: list[int], steps: int) -> None:
    """Without the native kernel: column generation over POT's sparse kernel."""
    solve = HostSolve(kernel="pot", threads=1)
    print("POT's kernels, warm from the previous basis, whole calls: n, d, noise, drift, weights:")
    print("  emd_c ms, our call cold ms, warm ms, emd_c / warm, cold / warm")
    for n in sizes:
        for noise, drift in ((0.01, 0.0), (0.1, 0.0), (0.01, 0.02)):
            ratios = []
            for d in (2, 32):
                for random_weights in (False, True):
                    if drift and not random_weights:
                        continue
                    problems = sequence(n, d, noise, drift, random_weights, steps)
                    basis = solve(*(problems[0][k] for k in (1, 2, 0))).basis
                    times = []
                    for M, a, b in problems[1:]:
                        e, reference = timed(lambda M=M, a=a, b=b: pot(M, a, b))
                        c, _ = timed(lambda M=M, a=a, b=b: solve(a, b, M))
                        w, r = timed(lambda M=M, a=a, b=b, s=basis: solve(a, b, M, s))
                        times.append((e, c, w))
                        same(float(r.value), reference, M)
                        basis = r.basis
                    e, c, w = (float(x) * 1e3 for x in np.median(times, axis=0))
                    ratios.append(e / w)
                    name = "random" if random_weights else "uniform"
                    print(
                        f"  {n:5d} {d:3d} {noise:5.2f} {drift:5.2f} {name:7s}"
                        f" {e:9.2f} {c:9.2f} {w:8.2f} {e / w:6.2f} {c / w:6.2f}",
                        flush=True,
                    )
            print(
                f"        geometric mean of emd_c / warm {geometric_mean(ratios):.2f}", flush=True
            )


def batch(repeats: int) -> None:
    print("a batch of 1000 problems of n = 64: emd_c ms, then kernel ms and ratio")
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(1000, 64, 2)), rng.normal(size=(1000, 64, 2)) + 0.5
    a = b = np.full(64, 1 / 64)
    M, M2 = distances(X, Y), distances(X + 0.01 * rng.normal(size=X.shape), Y)
    basis = _kernel.solve(M, a, b)[BASIS]
    rows: dict[str, list[float]] = {}
    for _ in range(repeats):
        rows.setdefault("emd_c", []).append(timed(lambda: [pot(x, a, b) for x in M2])[0])
        for threads in (1, 2):
            clock = time.process_time if threads == 1 else time.perf_counter
            for name, start in (("cold", None), ("warm", basis)):
                fn = lambda t=threads, s=start: _kernel.solve(M2, a, b, s, threads=t)  # noqa: E731
                rows.setdefault(f"{name}, {threads} threads", []).append(timed(fn, clock)[0])
    base = float(np.median(rows["emd_c"]))
    for name, times in rows.items():
        t = float(np.median(times))
        print(f"  {name:16s} {t * 1e3:9.2f} {base / t:7.1f}", flush=True)


def small(repeats: int) -> None:
    print("one call: n: emd_c us, kernel us cold, warm (fastest of the repeats)")
    rng = np.random.default_rng(0)
    for n in (4, 8, 16, 32, 64):
        M, a, b = rng.random((n, n)), weights(True, n, rng), weights(True, n, rng)
        basis = _kernel.solve(M, a, b)[BASIS]
        calls = (
            lambda M=M, a=a, b=b: pot(M, a, b),
            lambda M=M, a=a, b=b: _kernel.solve(M, a, b),
            lambda M=M, a=a, b=b, s=basis: _kernel.solve(M, a, b, s),
        )
        best = [np.inf] * 3
        for _ in range(repeats):
            for k, fn in enumerate(calls):
                t = timed(lambda fn=fn: [fn() for _ in range(200)])[0]
                best[k] = min(best[k], t / 200)
        print(f"  {n:4d}" + "".join(f" {x * 1e6:9.2f}" for x in best), flush=True)


def peak() -> int:
    """The most memory this process has held, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def memory(n: int, dtype: str) -> None:
    """In a process of its own, because a peak never comes down."""
    print(f"n = m = {n}, {dtype}: bytes per cell beyond M, seconds", flush=True)
    code = f"""
import sys; sys.path.insert(0, "benchmarks")
import numpy as np, kernel_speed as s
rng = np.random.default_rng(0)
M = rng.random(({n}, {n}), dtype=np.{dtype}); a = np.full({n}, 1 / {n})
before = s.peak(); t, r = s.timed(lambda: s._kernel.solve(M, a, a))
print("  ", round((s.peak() - before) / {n}**2, 3), round(t, 2), "status", r[0][0])
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def points(sizes: list[int]) -> None:
    from ot.lp import emd2_lazy

    print("coordinates, d = 2, sqeuclidean: n: emd2_lazy s, kernel s, ratio, MB beyond the inputs")
    for n in sizes:
        rng = np.random.default_rng(0)
        X, Y, a = rng.normal(size=(n, 2)), rng.normal(size=(n, 2)) + 0.5, np.full(n, 1 / n)
        before = peak()
        k, r = timed(lambda X=X, Y=Y, a=a: _kernel.solve_points(X, Y, a, a, 0))
        used = (peak() - before) / 1e6
        if n > 5000:
            print(f"  {n:6d} {'':9s} {k:9.2f} {'':7s} {used:8.1f}", flush=True)
            continue
        e, (reference, _) = timed(lambda X=X, Y=Y, a=a: emd2_lazy(X, Y, a, a, numItermax=10**9))
        same(r[VALUE], float(reference), np.ones(1))
        print(f"  {n:6d} {e:9.2f} {k:9.2f} {e / k:7.2f} {used:8.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    names = ["cold", "warm", "batch", "small", "memory", "points", "columns", "large"]
    parser.add_argument("parts", nargs="*", help=", ".join(names))
    parser.add_argument("--sizes", nargs="*", type=int, default=[256, 512, 1024, 2048])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    parts = args.parts or names[:-1]
    if unknown := set(parts) - set(names):
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}")
    print("row loops:", _kernel.isa())
    if "cold" in parts:
        cold(args.sizes, args.repeats)
    if "warm" in parts:
        warm(args.sizes, args.steps)
    if "batch" in parts:
        batch(args.repeats)
    if "small" in parts:
        small(args.repeats)
    if "memory" in parts:
        memory(4096, "float64")
    if "points" in parts:
        points([2000, 5000])
    if "columns" in parts:
        columns(args.sizes, args.steps)
    if "large" in parts:
        memory(10000, "float32")
        points([20000])


if __name__ == "__main__":
    main()
