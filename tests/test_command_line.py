"""``python -m ot_backends``: what the commands print, write and return."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ot_backends
from ot_backends.__main__ import COMMANDS, main
from ot_backends.cli import doctor, missing, reference

ROOT = Path(ot_backends.__file__).parents[1]

# Runs the command line where some modules cannot be imported.
WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {modules!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
from ot_backends.__main__ import main
sys.exit(main({argv!r}))
"""


def python(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return subprocess.run(
        [sys.executable, *args],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=240,
    )


def without(modules: set[str], *argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return python("-c", WITHOUT.format(modules=modules, argv=list(argv)), cwd=cwd)


def is_png(path: Path) -> bool:
    return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


# ---- the dispatch


@pytest.mark.parametrize(("argv", "status"), [(["--help"], 0), (["--version"], 0), ([], 2)])
def test_usage(argv: list[str], status: int, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == status
    said = capsys.readouterr()
    if argv == ["--version"]:
        assert said.out.split() == ["ot_backends", ot_backends.__version__]
    else:
        assert "python -m ot_backends" in said.out + said.err
    if argv == ["--help"]:
        assert all(name in said.out for name in COMMANDS)


def test_missing_reports_only_what_is_not_installed(tmp_path: Path) -> None:
    assert missing("numpy", "no_such_module_anywhere") == ["no_such_module_anywhere"]
    (tmp_path / "broken_module.py").write_text("import no_such_dependency_of_it")
    done = python(
        "-c", "from ot_backends.cli import missing; missing('broken_module')", cwd=tmp_path
    )
    assert done.returncode == 1
    assert "no_such_dependency_of_it" in done.stderr


# ---- the independent evaluation


def test_reference_value_and_slope() -> None:
    a, b, M = np.array([0.75, 0.25]), np.array([1.0, 1.0]), np.array([[0.0, 2.0], [2.0, 1.0]])
    assert reference.transport_value(a, b, M) == pytest.approx(0.75, abs=1e-14)
    cells = np.array([[0.5, 0.25], [0.0, 0.25]])  # d value / dM: the plan

    def along(t: float) -> float:
        return reference.transport_value(a, b, M + t * cells)

    assert reference.slope(along, 1e-5) == pytest.approx(np.sum(cells**2), abs=1e-9)


# ---- demo


def test_demo_learns_checks_and_draws(tmp_path: Path) -> None:
    for module in ("jax", "sklearn", "matplotlib", "tqdm"):
        pytest.importorskip(module)
    done = python("-m", "ot_backends", "demo", "--quick", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ["JAX", *([] if missing("torch") else ["Torch"])]:
        found = re.search(rf"{name}: largest deviation .*: (\S+)\n", done.stdout)
        assert found, done.stdout
        assert float(found[1]) < 1e-5
        found = re.search(rf"{name}: loss (\S+) at the start, (\S+) in the last pass", done.stdout)
        assert found, done.stdout
        assert float(found[2]) < float(found[1])
        assert f"{name}: 100%" in done.stderr  # the progress bar
    percent = re.findall(r"^(exact OT|Euclidean) distance +(\S+) +(\S+)$", done.stdout, re.M)
    assert [row[0] for row in percent] == ["exact OT", "Euclidean"]
    assert all(0 <= float(x) <= 100 for row in percent for x in row[1:])
    assert [path.name for path in tmp_path.iterdir()] == ["ot_backends_digits.png"]
    assert is_png(tmp_path / "ot_backends_digits.png")


def test_demo_without_torch_says_so_and_goes_on(tmp_path: Path) -> None:
    for module in ("jax", "sklearn", "matplotlib", "tqdm"):
        pytest.importorskip(module)
    output = tmp_path / "folder" / "picture.png"
    output.parent.mkdir()
    argv = ["demo", "--quick", "--output", str(output)]
    done = without({"torch"}, *argv, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert 'Torch: skipped, not installed (pip install "ot_backends[torch]")' in done.stdout
    assert is_png(output)


def test_demo_without_its_extra_names_the_command(tmp_path: Path) -> None:
    done = without({"jax", "sklearn", "matplotlib", "tqdm"}, "demo", cwd=tmp_path)
    assert done.returncode == 1
    assert "jax and sklearn and matplotlib and tqdm" in done.stderr
    assert 'pip install "ot_backends[demo]"' in done.stderr
    assert "Traceback" not in done.stderr


def test_demo_refuses_a_folder_that_is_not_there_before_it_learns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("jax", "sklearn", "matplotlib", "tqdm"):
        pytest.importorskip(module)
    assert main(["demo", "--output", str(tmp_path / "nowhere" / "x.png")]) == 1
    said = capsys.readouterr()
    assert "nowhere" in said.err
    assert said.out == ""


# ---- doctor


def test_doctor_finds_everything_well(tmp_path: Path) -> None:
    done = python("-m", "ot_backends", "doctor", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for line in ("python", "numpy", "scipy", "POT", "jax", "torch", "kernel", "threads"):
        assert re.search(rf"^{line} +\S", done.stdout, re.M), done.stdout
    for name in ("numpy", "jax", "torch"):
        if not missing(name):
            for what in ("values", "derivatives"):
                assert re.search(rf"^{name} {what} +ok \(within \S+ of", done.stdout, re.M)
    assert "failed" not in done.stdout


def test_doctor_without_frameworks(tmp_path: Path) -> None:
    done = without({"jax", "torch"}, "doctor", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("jax", "torch"):
        line = rf'^{name} +not installed \(pip install "ot_backends\[{name}\]"\)$'
        assert re.search(line, done.stdout, re.M), done.stdout
    assert re.search(r"^numpy derivatives +ok", done.stdout, re.M)


def test_doctor_fails_where_a_number_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "_BACKENDS", ("numpy",))
    right = doctor.transport_value
    monkeypatch.setattr(doctor, "transport_value", lambda *args: 1.001 * right(*args))
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert re.search(r"^numpy values +failed: ArithmeticError: off by 1\.0e-03", said, re.M)
    assert re.search(r"^numpy derivatives +failed: ", said, re.M)
    assert said.rstrip().endswith("some checks failed")


def test_doctor_goes_on_where_a_backend_breaks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "_BACKENDS", ("jax", "numpy"))

    def load(name: str) -> object:
        if name == "jax":
            raise RuntimeError("no usable device\nand more")
        return ot_backends.get_backend(np.ones(1))

    monkeypatch.setattr(doctor, "missing", lambda *_: [])
    monkeypatch.setattr(doctor, "load_backend", load)
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert re.search(r"^jax +failed: .*RuntimeError: no usable device$", said, re.M)
    assert re.search(r"^numpy values +ok", said, re.M)
