"""TensorBoard tracker; needs only the `tensorboard` package."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class TensorBoardTracker:
    """Writes event files to `above / run`, or to the run directory if `above` is None."""

    name = "TensorBoard"

    def __init__(self, above: Path | None, folder: Path) -> None:
        self._above, self._folder = above, folder
        self.where = f"see `tensorboard --logdir {above or folder}`"
        self._writer: Any = None

    def start(self, run: str, config: Mapping[str, Any], at_s: float) -> None:
        """Start a new event file; TensorBoard merges the files of a directory."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        where = self._folder / "tensorboard" if self._above is None else self._above / run
        self._writer = EventFileWriter(str(where))
        text = "\n".join(f"    {name}: {json.dumps(value)}" for name, value in config.items())
        config_value = Summary.Value(
            tag="config",
            metadata=SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text")),
            tensor=TensorProto(dtype=DT_STRING, string_val=[text.encode()]),
        )
        self._writer.add_event(Event(wall_time=at_s, step=0, summary=Summary(value=[config_value])))
        self._writer.flush()

    def log(self, step: int, figures: Mapping[str, float], at_s: float) -> None:
        """Write metrics and flush."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [
            Summary.Value(tag=name, simple_value=value)  # float32
            for name, value in figures.items()
        ]
        self._writer.add_event(Event(wall_time=at_s, step=step, summary=Summary(value=values)))
        self._writer.flush()

    def finish(self, state: str, at_s: float) -> None:
        """Close the file."""
        self._writer.close()
