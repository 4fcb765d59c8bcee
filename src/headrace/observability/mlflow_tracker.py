"""MLflow tracker: logs to a tracking server or a local database."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from headrace.observability.passwords import without_passwords

_TAG = "headrace.run"
_STATES = {"done": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}


class MlflowTracker:
    """Logs to an MLflow experiment; a resumed run continues the same MLflow run."""

    name = "MLflow"

    def __init__(self, uri: str, experiment: str) -> None:
        self._uri, self._experiment = uri, experiment
        self.where = f"experiment {experiment!r} at {without_passwords(uri)}"
        self._client: Any = None
        self._run_id = ""

    def start(self, run: str, config: Mapping[str, Any], at_s: float) -> None:
        """Find or create the MLflow run and log its parameters."""
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        # Suppress messages about the creation of database tables.
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)
        client = self._client = MlflowClient(tracking_uri=self._uri)
        known = client.get_experiment_by_name(self._experiment)
        experiment = (
            client.create_experiment(self._experiment) if known is None else known.experiment_id
        )
        found = client.search_runs([experiment], f"tags.`{_TAG}` = '{run}'")
        if found:
            kept = found[0]
            client.update_run(kept.info.run_id, status="RUNNING")
        else:
            start_ms = int(at_s * 1000)
            kept = client.create_run(experiment, start_ms, tags={_TAG: run}, run_name=run)
        self._run_id = kept.info.run_id
        # MLflow parameters cannot be changed once logged.
        new = [
            Param(name, str(value))
            for name, value in config.items()
            if name not in kept.data.params
        ]
        client.log_batch(self._run_id, params=new)

    def log(self, step: int, figures: Mapping[str, float], at_s: float) -> None:
        """Log metrics of a step."""
        from mlflow.entities import Metric

        at_ms = int(at_s * 1000)
        metrics = [Metric(name, value, at_ms, step) for name, value in figures.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def finish(self, state: str, at_s: float) -> None:
        """Set the final state of the run."""
        self._client.set_terminated(self._run_id, _STATES.get(state, "FAILED"), int(at_s * 1000))
