"""Write `docs/reference/performance.md` from the result files: figures, dates and commands.

    python benchmarks/performance_page.py            # write the page
    python benchmarks/performance_page.py --check    # only say whether it is up to date

Run it after any benchmark that changes a file in `benchmarks/results`. Figures that a file lacks
are left out, and a file that has no section here is shown as it is: no result can be forgotten.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.performance_format import Result
from benchmarks.performance_tables import SECTIONS, as_it_is

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "reference" / "performance.md"

HEAD = """# Performance

Every figure that headrace states about itself, when it was measured, and the command that measures
it again. This page is made of the files in `benchmarks/results` by

<!-- not run: it would write this page -->
```sh
python benchmarks/performance_page.py
```

and a test compares it with them. All was measured on a small shared machine: trust ratios, not
absolutes. A cluster here is [emulated](../howto/testbed.md): several machines on one, with real
processes and real sockets. Nothing was measured on GPUs.
"""

_PATH = re.compile(r"(?<=[\s=])/[^\s]+")


def section(name: str, result: Result) -> str:
    """One file's part of the page."""
    title, describe = SECTIONS.get(name, (name.replace("_", " ").capitalize(), as_it_is))
    machine = result.get("machine") or {}
    where = f"{machine.get('cores', '?')} cores, {machine.get('memory_gib', '?')} GiB"
    day = str(result.get("date", "undated"))[:10]
    versions = ", ".join(
        f"{package} {machine[package]}"
        for package in ("python", "numpy", "numba")
        if package in machine
    )
    commands = [result["command"]] if "command" in result else list(result.get("commands", ()))
    lines = [
        f"## {title}",
        "",
        f"`benchmarks/results/{name}.json`, {day}; {where}; {versions}.",
        *describe(result),
        *_notes(result),
        *_in_block([_PATH.sub("...", str(command)) for command in commands]),
    ]
    return "\n".join(lines) + "\n"


def _notes(result: Result) -> list[str]:
    """What a file says about its own figures, in keys like `ratio_is`."""
    notes = {
        key.rpartition("_")[0].replace("_", " "): value
        for key, value in result.items()
        if key.endswith(("_is", "_are")) and isinstance(value, str)
    }
    return ["", *(f"- {key}: {value}" for key, value in notes.items())] if notes else []


def _in_block(commands: list[str]) -> list[str]:
    fence = ["", "<!-- not run: takes minutes to hours -->", "```sh"]
    return [*fence, *dict.fromkeys(commands), "```"] if commands else []


def page(results: Path = RESULTS) -> str:
    """The whole page."""
    found = {path.stem: path for path in sorted(results.glob("*.json"))}
    known = [name for name in SECTIONS if name in found]
    others = sorted(set(found) - set(known))
    parts = [section(name, json.loads(found[name].read_text())) for name in [*known, *others]]
    return "\n".join([HEAD, *parts])


def main() -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if out of date")
    wanted, text = parser.parse_args(), page()
    if wanted.check:
        is_same = PAGE.exists() and PAGE.read_text(encoding="utf-8") == text
        print("up to date" if is_same else f"run python {sys.argv[0]}")
        return 0 if is_same else 1
    PAGE.write_text(text, encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
