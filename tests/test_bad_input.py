"""Bad input is an error that names the argument, traced or not; odd input has the right answer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import frameworks
import judge
import numpy as np
import pytest
from bad_input import ODD_BUT_RIGHT, VALUES, names_argument
from problems import prob

import ot_backends
from ot_backends.errors import InfeasibleError, MixedBackendsError, OTError, ProblemError

P = prob()
TRUE = judge.reference_value(*P.args)


@pytest.fixture
def fw(framework: Any) -> Any:
    return framework


@pytest.fixture
def diff(differentiable: Any) -> Any:
    return differentiable


def next_call_works(fw: Any, f: Callable[..., Any] = ot_backends.emd2) -> None:
    assert float(f(*fw.arrays(*P.args))) == pytest.approx(TRUE, rel=1e-12)


@pytest.mark.parametrize("kind", VALUES)
def test_bad_values(fw: Any, kind: str) -> None:
    name, args = VALUES[kind]
    a, b, M = fw.arrays(*args)
    for f, x in (
        (ot_backends.emd2, (a, b, M)),
        (ot_backends.emd, (a, b, M)),
        (ot_backends.solve, (M, a, b)),
    ):
        with pytest.raises(ProblemError) as caught:
            f(*x)
        assert names_argument(str(caught.value), name), str(caught.value)
    next_call_works(fw)


@pytest.mark.parametrize("kind", ["NaN in M at [0, 0]", "M all inf", "NaN in a"])
def test_bad_values_are_errors_under_differentiation(diff: Any, kind: str) -> None:
    name, args = VALUES[kind]
    x = diff.arrays(*args)
    for f in (
        lambda: diff.grad(ot_backends.emd2, (0, 1, 2))(*x),
        lambda: diff.jvp(ot_backends.emd2, x, x),
    ):
        with pytest.raises(ProblemError) as caught:
            f()
        assert names_argument(str(caught.value), name)
    next_call_works(diff)


def message_of(call: Callable[[], Any]) -> str:
    """The text of the error that `call` must raise, read at the value if not before."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - each framework wraps it in its own
        np.asarray(judge.to_numpy(call()))
    return str(caught.value)


def test_bad_values_in_compiled_code(diff: Any) -> None:
    f = diff.jit(ot_backends.emd2)
    next_call_works(diff, f)
    for kind, (name, args) in VALUES.items():
        with pytest.raises(ProblemError) as plain:
            ot_backends.emd2(*args)
        message = message_of(lambda args=args: f(*diff.arrays(*args)))
        assert str(plain.value) in message, kind
        assert names_argument(message, name), kind
        next_call_works(diff, f)
    next_call_works(diff)


@pytest.mark.parametrize("kind", ["NaN in the middle of M", "inf in b", "a row of inf in M"])
def test_bad_values_in_one_problem_of_a_batch(diff: Any, kind: str) -> None:
    name, args = VALUES[kind]
    stacked = [np.stack([good, bad, good]) for good, bad in zip(P.args, args, strict=True)]
    a, b, M = diff.arrays(*stacked)
    for f in (
        ot_backends.emd2,
        diff.vmap(ot_backends.emd2, (0, 0, 0)),
        diff.vmap(diff.grad(ot_backends.emd2), (0, 0, 0)),
    ):
        message = message_of(lambda f=f: f(a, b, M))
        assert names_argument(message, name)
        assert "1" in message  # which problem of the batch
    next_call_works(diff)


def test_bad_values_inside_a_scan() -> None:
    with frameworks.use("jax") as fw:
        a, b, M = fw.arrays(*P.args)

        def step(carry: Any, scale: Any) -> Any:
            return carry + ot_backends.emd2(a, b, scale * M), scale

        total = fw.jit(lambda scales: fw.jax.lax.scan(step, 0.0, scales)[0])
        message = message_of(lambda: total(fw.array([1.0, np.nan, 1.0])))
        assert names_argument(message, "M")
        assert float(total(fw.array([1.0, 2.0, 1.0]))) == pytest.approx(4 * TRUE, rel=1e-12)


SHAPES: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    "no rows": ("M", (0,), (5,), (0, 5)),
    "no columns": ("M", (6,), (0,), (6, 0)),
    "nothing": ("M", (0,), (0,), (0, 0)),
    "a too short": ("a", (5,), (5,), (6, 5)),
    "a too long": ("a", (7,), (5,), (6, 5)),
    "b too short": ("b", (6,), (4,), (6, 5)),
    "b too long": ("b", (6,), (6,), (6, 5)),
    "a and b exchanged": ("a", (5,), (6,), (6, 5)),
    "a scalar": ("a", (), (5,), (6, 5)),
    "a of length 1": ("a", (1,), (5,), (6, 5)),
    "M a vector": ("M", (6,), (5,), (6,)),
    "M a scalar": ("M", (6,), (5,), ()),
    "batches that differ": ("M", (3, 6), (5,), (2, 6, 5)),
}


@pytest.mark.parametrize("kind", SHAPES)
def test_bad_shapes(fw: Any, kind: str) -> None:
    name, *shapes = SHAPES[kind]
    a, b, M = fw.arrays(*(np.full(s, 1.0 / max(1, s[-1] if s else 1)) for s in shapes))
    for f, x in (
        (ot_backends.emd2, (a, b, M)),
        (ot_backends.emd, (a, b, M)),
        (ot_backends.solve, (M, a, b)),
    ):
        with pytest.raises(ProblemError) as caught:
            f(*x)
        assert names_argument(str(caught.value), name), str(caught.value)
    message = message_of(lambda: fw.jit(ot_backends.emd2)(a, b, M))
    assert names_argument(message, name), message
    next_call_works(fw)


def test_basis_of_a_wrong_shape(fw: Any) -> None:
    a, b, M = fw.arrays(*P.args)
    for size in (10, 12):
        with pytest.raises(ProblemError, match="basis"):
            ot_backends.emd2(a, b, M, basis=fw.array(np.zeros(size), "int32"))


def test_types_that_are_no_numbers(fw: Any) -> None:
    a, b, M = fw.arrays(*P.args)
    with pytest.raises((ProblemError, TypeError), match="M"):
        ot_backends.emd2(a, b, fw.array(P.M, "complex128"))
    with pytest.raises((ProblemError, TypeError)) as caught:
        ot_backends.emd2(fw.array(P.a, "complex128"), b, M)
    assert names_argument(str(caught.value), "a")


@pytest.mark.parametrize(
    "M",
    [
        [["x", "y"], ["z", "w"]],
        np.array([[object(), 1], [2, 3]]),
        [[1.0, 2.0], [3.0]],
        None,
        "costs",
        {"M": 1},
        np.array([["2020-01-01"] * 2] * 2, "datetime64[D]"),
    ],
    ids=["text", "objects", "ragged", "None", "a string", "a dict", "dates"],
)
def test_costs_that_are_no_array(M: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="M"):
        ot_backends.emd2([0.5, 0.5], [0.5, 0.5], M)


def test_arrays_of_two_frameworks() -> None:
    with frameworks.use("jax") as jax, frameworks.use("torch") as torch:
        a, b, M = jax.arrays(*P.args)
        with pytest.raises(MixedBackendsError, match="torch"):
            ot_backends.emd2(a, b, torch.array(P.M))
        with pytest.raises(MixedBackendsError, match="jax"):
            ot_backends.emd2(torch.array(P.a), b, M)


@pytest.mark.parametrize("kind", ODD_BUT_RIGHT)
def test_odd_input_has_the_right_answer(kind: str) -> None:
    a, b, M = ODD_BUT_RIGHT[kind](P.args)
    single = M.dtype == np.float32
    result = ot_backends.solve(M, a, b)
    judge.check_result(result, a, b, M, rtol=1e-6 if single else 1e-12)


def test_masses_a_little_apart_are_right_or_an_error() -> None:
    for mismatch in (1e-6, 1e-5):
        b = P.b * (1 + mismatch)
        try:
            result = ot_backends.solve(P.M, P.a, b)
        except ProblemError:
            continue
        judge.check_result(result, P.a, b, P.M)


def test_masses_at_the_ends_of_the_range_are_right_or_an_error() -> None:
    for factor in (1e308, 1e307, 1e-308, 1e-318):
        a, b = P.a * factor * 2, P.b * factor * 2
        try:
            value = ot_backends.emd2(a, b, P.M)
        except OTError:
            continue
        assert value / (2 * factor) == pytest.approx(TRUE, rel=1e-3 if factor < 1e-310 else 1e-9)


def test_strided_and_expanded_tensors() -> None:
    with frameworks.use("torch") as fw:
        a, b, M = fw.arrays(*P.args)
        for x in (
            M.t().contiguous().t(),
            M.repeat(1, 2)[:, :5],
            M.flip(0).flip(0),
            M.expand(3, 6, 5)[2],
            fw.torch.stack([M, M], -1)[..., 1],
        ):
            assert float(ot_backends.emd2(a, b, x)) == pytest.approx(TRUE, rel=1e-12)
        uniform = fw.array([1 / 6]).expand(6)
        exact = judge.reference_value(np.full(6, 1 / 6), P.b, P.M)
        assert float(ot_backends.emd2(uniform, b, M)) == pytest.approx(exact, rel=1e-12)


QUIET = """
import sys
sys.path.insert(0, {here!r})
import numpy as np, frameworks, ot_backends
from bad_input import VALUES
from ot_backends.errors import ProblemError
with frameworks.use({name!r}) as fw:
    for kind, (_, args) in VALUES.items():
        try:
            ot_backends.emd2(*fw.arrays(*args))
        except ProblemError:
            continue
        sys.exit(f"no error for {{kind}}")
"""


@pytest.mark.parametrize("name", list(frameworks.ALL))
def test_nothing_is_printed(name: str) -> None:
    code = QUIET.format(here=str(Path(__file__).parent), name=name)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_infeasible_is_a_problem_error() -> None:
    with pytest.raises(InfeasibleError):
        ot_backends.emd2(*VALUES["M all inf"][1])
    assert issubclass(InfeasibleError, ValueError)
