"""Examples in docstrings do what they say, and every public function has one."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import inspect
import pkgutil
from pathlib import Path

import pytest

import headrace
import headrace.api

_API = pkgutil.walk_packages(headrace.api.__path__, "headrace.api.")
MODULES = sorted({*(module.name for module in _API), *headrace._HOME_OF.values()})
NEED_TORCH = ("graph", "inference", "train")
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # PyG's
FLAGS = doctest.ELLIPSIS | doctest.REPORT_NDIFF


def has_torch(module: str) -> bool:
    if module.rpartition(".")[2] not in NEED_TORCH:
        return True
    return importlib.util.find_spec("torch_geometric") is not None


@pytest.mark.parametrize("name", MODULES)
def test_examples_do_what_they_say(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_torch(name):
        pytest.skip("PyG is not installed")
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    for number, test in enumerate(doctest.DocTestFinder().find(module, name)):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        said: list[str] = []
        runner.run(test, out=said.append)
        assert not said, "".join(said)


@pytest.mark.parametrize("name", headrace.__all__)
def test_every_public_function_has_an_example(name: str) -> None:
    home = headrace._HOME_OF.get(name, "")
    if not home or not has_torch(home):
        pytest.skip("not a function, or PyG is not installed")
    if not inspect.isfunction(getattr(headrace, name)):
        return
    # Some live upstairs of what documents them, or are best shown beside what they undo.
    module = importlib.import_module(home)
    examples = [
        example.source for test in doctest.DocTestFinder().find(module) for example in test.examples
    ]
    assert any(f"headrace.{name}(" in source for source in examples)
