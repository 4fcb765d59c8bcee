"""However parameters are cut, servers together are one optimizer."""

from __future__ import annotations

from functools import reduce
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from headrace.training.parameter_server.optimizer_shard import OptimizerShard, sum_by_rank  # noqa: E402
from headrace.training.parameter_server.optimizer_specs import OPTIMIZERS, check_options, options_of  # noqa: E402
from headrace.training.parameter_server.sharding import ShardLayout  # noqa: E402

SIZES = st.lists(st.integers(0, 9), min_size=1, max_size=5)


@given(SIZES, st.integers(1, 7))
def test_every_number_has_one_server_and_shards_are_even(sizes: list[int], num: int) -> None:
    layout = ShardLayout.of(sizes, num)
    seen = [
        (piece.parameter, number)
        for server in range(num)
        for piece in layout.pieces(server)
        for number in range(piece.begin, piece.begin + piece.length)
    ]
    assert seen == [(p, number) for p, size in enumerate(sizes) for number in range(size)]
    shares = [sum(piece.length for piece in layout.pieces(server)) for server in range(num)]
    assert shares == [end - begin for begin, end in map(layout.bounds, range(num))]
    assert max(shares) - min(shares) <= 1


@given(
    SIZES.filter(any),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from(OPTIMIZERS),
    st.integers(0, 2**31),
)
def test_shards_step_as_one_optimizer_with_gradients_summed_by_rank(
    sizes: list[int], num_servers: int, num_trainers: int, name: str, seed: int
) -> None:
    drawing = np.random.default_rng(seed)
    layout = ShardLayout.of(sizes, num_servers)
    first = drawing.standard_normal(layout.num_elements).astype(np.float32)
    spans = [slice(*ends) for ends in pairwise(accumulate(sizes, initial=0))]
    whole = [torch.from_numpy(first[span].copy()).requires_grad_() for span in spans]
    optimizer = getattr(torch.optim, name)(whole, lr=0.1)
    options = check_options(name, options_of(optimizer))
    shards = []
    for server in range(num_servers):
        lengths = [piece.length for piece in layout.pieces(server)]
        values = first[slice(*layout.bounds(server))]
        shards.append(OptimizerShard(name, options, lengths, [0] * len(lengths), values))
    for _ in range(3):
        gradients = [
            drawing.standard_normal(layout.num_elements).astype(np.float32)
            for _ in range(num_trainers)
        ]
        present = [drawing.random(len(sizes)) < 0.7 for _ in range(num_trainers)]
        for own, has in zip(gradients, present, strict=True):
            for span, here in zip(spans, has, strict=True):
                own[span] *= here
        # From the left: floats are summed in the order of ranks.
        total = torch.from_numpy(reduce(np.add, gradients))
        for parameter, span, here in zip(whole, spans, np.any(present, axis=0), strict=True):
            parameter.grad = total[span] if here else None
        optimizer.step()
        for server, shard in enumerate(shards):
            bounds = slice(*layout.bounds(server))
            owners = [piece.parameter for piece in layout.pieces(server)]
            has_any = np.any([has[owners] for has in present], axis=0)
            shard.step(sum_by_rank([each[bounds] for each in gradients]), has_any)
    found = np.concatenate([shard.values for shard in shards])
    expected = np.concatenate([parameter.detach().numpy() for parameter in whole])
    np.testing.assert_array_equal(found, expected)
