"""The space of a sweep: which settings its trials have."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np

from headrace.core.errors import MissingExtraError, SpecError
from headrace.core.values import Value

Setting = bool | int | float | str


class Range(Value):
    """Values of one setting: some values, or an interval.

    Attributes:
        name: Name of the setting.
        values: The values; empty for an interval.
        low: Lower limit.
        high: Upper limit.
        is_log: Whether values are uniform on a logarithmic scale.
        is_int: Whether values are integers.
    """

    name: str
    values: tuple[Setting, ...] = ()
    low: float = 0.0
    high: float = 0.0
    is_log: bool = False
    is_int: bool = False

    @classmethod
    def parse(cls, text: str) -> Range:
        """Parse `lr=0.1,0.01`, `dropout=0:0.5`, `lr=log:1e-4:1e-1` or `width=int:16:256`.

        Raises:
            SpecError: The text is not a range.
        """
        name, equals, rest = text.partition("=")
        if not name or not equals or not rest:
            raise SpecError(f"{text!r} is not a range", "write name=1,2,3 or name=low:high")
        words = rest.split(":")
        kinds = set()
        while words and words[0] in ("log", "int"):
            kinds.add(words.pop(0))
        if len(words) == 1 and not kinds:
            return cls(name=name, values=tuple(_value(word) for word in rest.split(",")))
        try:
            low, high = map(float, words)
        except ValueError:
            raise SpecError(
                f"{text!r} is not a range",
                f"write {name}=low:high, {name}=log:low:high or {name}=int:low:high",
            ) from None
        if not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise SpecError(f"{text!r} has no values", "give the lower limit first")
        if "log" in kinds and low <= 0:
            raise SpecError(f"{text!r} has no logarithm", "give limits above 0")
        return cls(name=name, low=low, high=high, is_log="log" in kinds, is_int="int" in kinds)

    def draw(self, rng: np.random.Generator) -> Setting:
        """A random value."""
        if self.values:
            return self.values[int(rng.integers(len(self.values)))]
        if self.is_log:
            drawn = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        else:
            drawn = float(rng.uniform(self.low, self.high))
        if self.is_int:
            return int(min(self.high, max(self.low, round(drawn))))
        return min(self.high, max(self.low, drawn))


class Space(Value):
    """The trials of a sweep.

    Attributes:
        kind: `grid`: all combinations; `random`: drawn; `optuna`: suggested from earlier results.
        ranges: The settings.
        num_trials: How many trials; of a grid all combinations.
        seed: Seed of drawn and suggested values.
    """

    kind: Literal["grid", "random", "optuna"]
    ranges: tuple[Range, ...]
    num_trials: int
    seed: int = 0

    @classmethod
    def of(
        cls, kind: Literal["grid", "random", "optuna"], texts: Sequence[str], num: int, seed: int
    ) -> Space:
        """Parse ranges.

        Raises:
            SpecError: A range is invalid or given twice.
        """
        ranges = tuple(Range.parse(text) for text in texts)
        names = [each.name for each in ranges]
        for name in names:
            if names.count(name) > 1:
                raise SpecError(f"{name} has two ranges", "give each setting once")
        if kind == "grid":
            for each in ranges:
                if not each.values:
                    raise SpecError(
                        f"a grid needs the values of {each.name}",
                        f"write {each.name}=1,2,3, or use --random",
                    )
            num = math.prod(len(each.values) for each in ranges)
        return cls(kind=kind, ranges=ranges, num_trials=num, seed=seed)


class Suggester(Protocol):
    """Gives trials their settings."""

    def suggest(self, number: int) -> dict[str, Setting] | None:
        """Settings of the next trial, by number; None if results of earlier ones are needed."""
        ...

    def tell(self, number: int, value: float | None) -> None:
        """Learn the value of a trial that has ended; None if it has none. Larger is better."""
        ...


def suggester(space: Space, known: Mapping[int, Mapping[str, Setting]]) -> Suggester:
    """The suggester of a space.

    Args:
        space: The space.
        known: Settings of trials that already exist.
    """
    if space.kind == "optuna":
        return _OptunaSuggester(space, known)
    return _ListedSuggester(space)


class _ListedSuggester:
    """Settings that do not depend on results."""

    def __init__(self, space: Space) -> None:
        names = [each.name for each in space.ranges]
        if space.kind == "grid":
            product = itertools.product(*(each.values for each in space.ranges))
            self._all = [dict(zip(names, values, strict=True)) for values in product]
        else:
            rng = np.random.default_rng(space.seed)
            self._all = [
                {each.name: each.draw(rng) for each in space.ranges}
                for _ in range(space.num_trials)
            ]

    def suggest(self, number: int) -> dict[str, Setting] | None:
        return self._all[number]

    def tell(self, number: int, value: float | None) -> None:
        pass


class _OptunaSuggester:
    """Settings of Optuna's TPE sampler; one study per process, told the results of the journal."""

    def __init__(self, space: Space, known: Mapping[int, Mapping[str, Setting]]) -> None:
        try:
            import optuna
        except ImportError:
            raise MissingExtraError(
                "--optuna needs Optuna, which is not installed", "pip install 'headrace[sweep]'"
            ) from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna = optuna
        self._space = space
        self._known = {number: dict(values) for number, values in known.items()}
        self._distributions = {each.name: self._distribution(each) for each in space.ranges}
        self._study = optuna.create_study(
            direction="maximize",
            sampler=optuna.samplers.TPESampler(seed=space.seed, constant_liar=True),
        )

    def suggest(self, number: int) -> dict[str, Setting] | None:
        trial = self._study.ask(self._distributions)
        self._known[number] = dict(trial.params)
        self._study.tell(trial.number, state=self._optuna.trial.TrialState.FAIL)
        return dict(trial.params)

    def tell(self, number: int, value: float | None) -> None:
        if value is None or not math.isfinite(value):
            return
        made = self._optuna.trial.create_trial(
            params=self._known[number], distributions=self._distributions, value=value
        )
        self._study.add_trial(made)

    def _distribution(self, each: Range) -> Any:
        found = self._optuna.distributions
        if each.values:
            return found.CategoricalDistribution(list(each.values))
        if each.is_int:
            return found.IntDistribution(int(each.low), int(each.high), log=each.is_log)
        return found.FloatDistribution(each.low, each.high, log=each.is_log)


def _value(word: str) -> Setting:
    """A value as YAML reads it: number, truth value or text."""
    lowered = word.lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    for kind in (int, float):
        try:
            number = kind(word)
        except ValueError:
            continue
        if math.isfinite(number):
            return number
    return word
