"""Task actors that cannot end their process still remove their folder."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.runtime.cluster.local_actors import LocalActors
from headrace.runtime.workers.base import TaskActor
from headrace.runtime.workers.store import StoreActor
from headrace.runtime.workers.trainer import TrainerActor


class Stubborn:
    """A process, an inbox or a server that cannot be ended."""

    def end(self, grace_s: float = 1.0) -> None:
        raise OSError("no")

    close = end


@pytest.mark.parametrize(
    ("kind", "part"),
    [(TaskActor, "_process"), (TrainerActor, "_requests"), (StoreActor, "_agent")],
)
def test_an_error_at_the_end_leaves_no_folder(kind: type[TaskActor], part: str) -> None:
    actor = kind("store0", "m0", LocalActors("m0"))
    stubborn: Any = Stubborn()
    setattr(actor, part, stubborn)
    assert actor.folder.is_dir()
    with pytest.raises(OSError, match="no"):
        actor.close()
    assert not actor.folder.exists()
