"""Mutants of the simulation fit the source: a campaign would end at one that does not."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from benchmarks.simulation_mutants import MUTANTS, ROOT, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_replaced_text_is_there_once(mutant: Mutant) -> None:
    text = (ROOT / "src" / "headrace" / mutant.file).read_text()
    assert text.count(mutant.old) == 1
