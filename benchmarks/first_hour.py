"""Measure what a stranger waits for: installing headrace, importing it, a first rehearsal.

    python benchmarks/first_hour.py --json
    python benchmarks/first_hour.py --json --quick
    python benchmarks/first_hour.py --output benchmarks/results/first_hour.json
    python benchmarks/first_hour.py --only 3.13 --output benchmarks/results/first_hour.json

The last line is one JSON object. The wheel is built and installed into a fresh virtual environment
for every Python from 3.11 to 3.13 that is found, without pip's cache, so that packages are fetched
as they are the first time; commands then run outside the repository, with nothing compiled before.
Figures at the top are the worst of all Pythons. `--quick` tries one Python with pip's cache, and
leaves out the first plan, the report's prediction and the extra `train`. With `--only`, what a file
has of the rest stays in it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import describe_machine

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("3.11", "3.12", "3.13")
LIMITS = {"base_install_s": 60.0, "wheel_bytes": 1_000_000, "import_s": 0.3}
TORCH = os.environ.get("TORCH", "2.13.0")
PROCESSES, PROCESSES_QUICK = 7, 3
WORST = (
    *("base_install_s", "import_s", "bare_python_s", "import_and_load_s", "help_s"),
    *("first_simulation_s", "next_simulation_s", "first_plan_s", "explain_s"),
)
IMPORT = "import time; t = time.perf_counter(); import headrace; {}print(time.perf_counter() - t)"
REPORT = ROOT / "benchmarks" / "first_report.py"


def find_pythons() -> dict[str, str]:
    """Interpreters by version, on the path or of pyenv; one that does not start is none."""
    found = {}
    for version in VERSIONS:
        name = f"python{version}"
        kept = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/{name}"))
        for candidate in (shutil.which(name), *map(str, reversed(kept))):
            if candidate is None:
                continue
            done = subprocess.run([candidate, "-c", ""], capture_output=True, check=False)
            if done.returncode == 0:
                found[version] = candidate
                break
    return found


class Place:
    """A fresh virtual environment, and a folder outside the repository."""

    def __init__(self, python: str, folder: Path, may_cache: bool) -> None:
        self.folder = folder
        self._pip = ["--quiet", "--disable-pip-version-check"]
        if not may_cache:
            self._pip.append("--no-cache-dir")
        self.folder.mkdir()
        for name in ("cluster", "job"):
            shutil.copy(ROOT / "examples" / "testbed" / f"{name}.yaml", folder / f"{name}.yaml")
        kept = {"HOME", "LANG", "PATH"} | {name for name in os.environ if "PIP_" in name}
        self._environ = {name: os.environ[name] for name in kept if name in os.environ}
        self._environ |= {"HEADRACE_RUNS": str(folder / "runs"), "PYTHONNOUSERSITE": "1"}
        self.venv_s, _ = self.time([python, "-m", "venv", "venv"])

    def time(self, command: list[str]) -> tuple[float, str]:
        """Seconds that a command takes, and what it prints."""
        began_s = time.perf_counter()
        done = subprocess.run(
            command, cwd=self.folder, env=self._environ, capture_output=True, text=True, check=False
        )
        took_s = time.perf_counter() - began_s
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
        return took_s, done.stdout

    def pip(self, *words: str) -> float:
        """Seconds that pip takes."""
        return self.time([str(self.folder / "venv" / "bin" / "pip"), *words, *self._pip])[0]

    def python(self, *words: str) -> tuple[float, str]:
        """Seconds of a Python process, and what it prints."""
        return self.time([str(self.folder / "venv" / "bin" / "python"), *words])

    def headrace(self, *words: str) -> float:
        """Seconds of a command."""
        return self.time([str(self.folder / "venv" / "bin" / "headrace"), *words])[0]


def build_wheel(place: Place) -> tuple[Path, float]:
    """The wheel that users install, and the seconds of building it."""
    took_s = place.pip("wheel", "--no-deps", "--wheel-dir", "wheels", str(ROOT))
    (wheel,) = (place.folder / "wheels").glob("*.whl")
    return wheel, took_s


def measure(place: Place, wheel: Path, quick: bool) -> dict[str, Any]:
    """Everything about one Python."""
    num = PROCESSES_QUICK if quick else PROCESSES
    files = ("--cluster", "cluster.yaml", "--job", "job.yaml")
    found: dict[str, Any] = {
        "version": place.python("-c", "import platform; print(platform.python_version())")[1],
        "venv_s": place.venv_s,
        "base_install_s": place.pip("install", str(wheel)),
    }
    found["version"] = found["version"].strip()
    found["first_help_s"] = place.headrace("--help")
    found["help_s"] = median(place.headrace("--help") for _ in range(num))
    found["bare_python_s"] = median(place.python("-c", "pass")[0] for _ in range(num))
    found["import_s"] = median(float(place.python("-c", IMPORT.format(""))[1]) for _ in range(num))
    load = IMPORT.format("headrace.plan; headrace.simulate; ")
    found["import_and_load_s"] = median(float(place.python("-c", load)[1]) for _ in range(num))
    found["first_simulation_s"] = place.headrace("simulate", *files)
    found["next_simulation_s"] = median(place.headrace("simulate", *files) for _ in range(num))
    found["first_plan_s"] = found["next_plan_s"] = found["explain_s"] = None
    if not quick:
        found["first_plan_s"] = place.headrace("plan", *files, "-o", "plan.json")
        found["next_plan_s"] = place.headrace("plan", *files, "-o", "plan.json")
        found["explain_s"] = place.headrace("explain", "plan.json")
    found["first_report_s"] = sum(
        (
            place.python(str(REPORT), "rehearsed", *(["--without-plan"] if quick else []))[0],
            place.headrace("report", "rehearsed", "--no-advice", "-o", "report.html"),
        )
    )
    page = (place.folder / "report.html").read_text(encoding="utf-8")
    found["has_report"] = "<style>" in page and "addEventListener" in page and len(page) > 20_000
    return found


def install_train(place: Place, wheel: Path) -> dict[str, Any]:
    """The extra for training, with torch for CPUs first, as the tutorial says."""
    torch_s = place.pip("install", f"torch=={TORCH}")
    rest_s = place.pip("install", f"{wheel}[train]")
    size = sum(each.stat().st_size for each in (place.folder / "venv").rglob("*") if each.is_file())
    return {
        "train_install_s": torch_s + rest_s,
        "torch_install_s": torch_s,
        "torch": place.python("-c", "import torch; print(torch.__version__)")[1].strip(),
        "venv_bytes": size,
    }


def run(parts: list[str], quick: bool) -> dict[str, Any]:
    """What was asked for: Pythons by version, and `train`, which the first of them gets."""
    pythons = find_pythons()
    wanted = {version: pythons[version] for version in parts if version in pythons}
    if "train" in parts and not wanted:
        wanted = dict(list(pythons.items())[:1])
    if not wanted:
        raise SystemExit(f"there is no Python of {', '.join(VERSIONS)}: install one")
    found: dict[str, Any] = {"pythons": {}}
    with TemporaryDirectory() as work:
        for number, (version, python) in enumerate(wanted.items()):
            place = Place(python, Path(work) / version, may_cache=quick)
            if number == 0:
                wheel, found["wheel_build_s"] = build_wheel(place)
                found["wheel_bytes"] = wheel.stat().st_size
            if version in parts:
                print(f"Python {version} ...", file=sys.stderr)
                found["pythons"][version] = measure(place, wheel, quick)
            if "train" in parts and number == 0:
                print("headrace[train] ...", file=sys.stderr)
                found["train"] = {"python": version} | install_train(place, wheel)
    return found | {"missing_pythons": [each for each in VERSIONS if each not in pythons]}


def summed_up(found: Mapping[str, Any]) -> dict[str, Any]:
    """The worst of all Pythons, and whether limits are held."""
    figures: dict[str, Any] = {"wheel_bytes": found["wheel_bytes"]}
    for name in WORST:
        values = [each[name] for each in found["pythons"].values() if each[name] is not None]
        figures[name] = max(values, default=None)
    figures["train_install_s"] = found.get("train", {}).get("train_install_s")
    figures["has_report"] = all(each["has_report"] for each in found["pythons"].values())
    held = {name: figures[name] < most for name, most in LIMITS.items()}
    return figures | {"limits": LIMITS, "held": held, "passed": all(held.values())}


def rounded(value: Any) -> Any:
    """Three digits after the point for all seconds: the rest is noise."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return round(value, 3) if isinstance(value, float) else value


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    parser.add_argument("--quick", action="store_true", help="one Python, in under 50 s")
    parser.add_argument("--only", nargs="+", choices=(*VERSIONS, "train"), help="some of it")
    parser.add_argument("--output", type=Path, help="also write it to this file, or add to it")
    wanted = parser.parse_args()
    began_s = time.monotonic()
    parts = wanted.only or ([*find_pythons()][:1] if wanted.quick else [*VERSIONS, "train"])
    found = run(parts, wanted.quick)
    if wanted.only and wanted.output is not None and wanted.output.exists():
        before = json.loads(wanted.output.read_text())
        found = {"train": before["train"]} | found if "train" in before else found
        found["pythons"] = dict(sorted((before["pythons"] | found["pythons"]).items()))
    result = rounded(summed_up(found) | found) | {
        "benchmark": "first_hour",
        "is_quick": wanted.quick,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "command": "python benchmarks/first_hour.py --output benchmarks/results/first_hour.json",
        "elapsed_s": round(time.monotonic() - began_s, 1),
    }
    if not wanted.json:
        for name in ("wheel_bytes", *WORST, "train_install_s"):
            print(f"{name:<24}{result[name]}")
    if wanted.output is not None:
        wanted.output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
