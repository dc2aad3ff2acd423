"""Run a script in a fresh interpreter, with a time limit that starts when its imports are done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import ot_backends

ROOT = Path(__file__).parent.parent
#: Where this process has the package from: the installed one, or the working tree.
PACKAGE = Path(ot_backends.__file__).parents[1]


def run_script(
    *command: str, devices: int = 1, limit: float, import_limit: float = 300
) -> list[dict[str, Any]]:
    """Return the JSON lines that `command` prints; TimeoutError where one takes over `limit` s.

    The first line must be ``{"started": true}``: the clock starts there, and again at each line.
    """
    env = {k: v for k, v in os.environ.items() if not k.startswith(("XLA_", "JAX_"))}
    env["JAX_PLATFORMS"] = "cpu"
    env["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    env["PYTHONPATH"] = os.pathsep.join([str(PACKAGE), str(ROOT / "tests")])
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=ROOT
    )
    assert process.stdout is not None
    assert process.stderr is not None
    errors: list[str] = []
    stderr = process.stderr
    drain = threading.Thread(target=lambda: errors.append(stderr.read()))
    drain.start()
    late = threading.Event()

    def kill() -> None:
        late.set()
        process.kill()

    lines: list[dict[str, Any]] = []
    timer = threading.Timer(import_limit, kill)
    timer.start()
    for line in process.stdout:
        if line.startswith("{"):
            timer.cancel()
            lines.append(json.loads(line))
            timer = threading.Timer(limit, kill)
            timer.start()
    process.wait()
    timer.cancel()
    drain.join()
    process.stdout.close()
    stderr.close()
    stuck = (
        f"after {json.dumps(lines[-1]) if lines else 'its start'}; it printed\n{errors[0][-3000:]}"
    )
    if late.is_set():
        raise TimeoutError(f"{' '.join(command)} was stuck for {limit} s {stuck}")
    assert process.returncode == 0, f"{' '.join(command)} ended with {process.returncode} {stuck}"
    assert lines, stuck
    assert lines[0] == {"started": True}, lines[0]
    return lines[1:]


def run_python(code: str, *args: str, limit: float = 300) -> str:
    """Run Python code, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code, *args],
        env={**os.environ, "PYTHONPATH": str(PACKAGE), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=limit,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def python(name: str, *args: str) -> list[str]:
    """Return the command that runs the script `name` of this folder."""
    return [sys.executable, str(Path(__file__).parent / name), *args]
