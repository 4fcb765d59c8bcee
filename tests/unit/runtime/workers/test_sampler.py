"""What is told of a sampler that was replaced names it once."""

from __future__ import annotations

import pytest

from headrace.runtime.cluster.local_actors import LocalActors
from headrace.runtime.workers.sampler import SamplerActor


@pytest.mark.parametrize(
    ("why", "after"),
    [
        ("sampler0.0 on m1 was ended by SIGKILL", "was ended by SIGKILL"),
        ("sampler0.0 on m1 is gone: its log ends", "is gone: its log ends"),
        ("store1 on m0 is gone", "was lost: store1 on m0 is gone"),
    ],
)
def test_the_cause_of_a_restart_follows_the_name(
    why: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SamplerActor, "begin", lambda *_: None)
    actor = SamplerActor("sampler0.0", "m1", LocalActors("m0"))
    try:
        actor._last = {}, None, None, "m0"
        actor.begin_again(1, 2, why)
        assert actor.state().why == after
        assert actor.state().restarts == 1
    finally:
        actor.close()
