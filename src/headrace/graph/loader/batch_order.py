"""Numbered batches and a seeded shuffle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler

from headrace.graph.sampling.hop import hop_key

_SHUFFLE = ("", "shuffle", "")


@dataclass(frozen=True)
class NumberedBatch:
    """Epoch and number of a batch, from 0, and the positions of its seeds in the input."""

    epoch: int
    number: int
    index: Sequence[int]


class SeededShuffle(Sampler[int]):
    """A different order in every epoch, the same in every run."""

    def __init__(self, num_seeds: int, seed: int) -> None:
        self.epoch = 0
        self._num_seeds = num_seeds
        self._seed = seed

    def __len__(self) -> int:
        return self._num_seeds

    def __iter__(self) -> Iterator[int]:
        key = hop_key(self._seed, self.epoch, 0, 0, _SHUFFLE)
        generator = torch.Generator().manual_seed(key)
        return iter(torch.randperm(self._num_seeds, generator=generator).tolist())


class _Numbered:
    """Numbers the batches of another sampler; each new iterator is the next epoch."""

    def __init__(self, batches: Any, shuffle: SeededShuffle | None) -> None:
        self.epoch = 0
        self.first_batch = 0
        self._batches = batches
        self._shuffle = shuffle

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[NumberedBatch]:
        # A generator runs only with its first batch: torch creates iterators it does not use.
        epoch, self.epoch = self.epoch, self.epoch + 1
        first, self.first_batch = self.first_batch, 0
        if self._shuffle is not None:
            self._shuffle.epoch = epoch
        for number, index in enumerate(self._batches):
            if number >= first:
                yield NumberedBatch(epoch, number, index)


class _Positions:
    """Dataset of positions that passes a numbered batch to `collate_fn`."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> int:
        return index

    def __getitems__(self, batch: Any) -> Any:
        return batch


class NumberedLoader(DataLoader[Any]):
    """A `DataLoader` whose `collate_fn` receives a `NumberedBatch`.

    `seed` determines the shuffled order; all other arguments are those of torch.
    """

    def __init__(
        self,
        dataset: Any,
        seed: int = 0,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        **kwargs: Any,
    ) -> None:
        ours = None
        if shuffle and sampler is None and batch_sampler is None:
            sampler = ours = SeededShuffle(len(dataset), seed)
            shuffle = None
        self._numbered: _Numbered | None = None
        super().__init__(
            _Positions(len(dataset)),  # type: ignore[arg-type]
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            **kwargs,
        )
        if self.batch_sampler is not None:
            self._numbered = _Numbered(self.batch_sampler, ours)

    @property
    def epoch(self) -> int:
        """Epoch of the next iteration; set it to resume training."""
        return 0 if self._numbered is None else self._numbered.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        if self._numbered is not None:
            self._numbered.epoch = epoch

    def go_to(self, epoch: int, batch: int) -> None:
        """Start the next iteration at this epoch and batch."""
        if self._numbered is not None:
            self._numbered.epoch, self._numbered.first_batch = epoch, batch

    @property
    def _index_sampler(self) -> Any:
        return self.sampler if self._numbered is None else self._numbered
