"""The machines people have: resources, network cards, labels and price."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import ConfigDict, Field, model_validator

from headrace.core.errors import SpecError
from headrace.core.units import BYTES_PER_S_SCHEMA, Amount, BytesPerS, Count, Number
from headrace.core.values import Spec


def _one_nic_figure_is_enough(schema: dict[str, Any]) -> None:
    schema["properties"]["nic"] = BYTES_PER_S_SCHEMA | {"title": "Nic"}
    schema["required"] = ["name"]
    schema["anyOf"] = [{"required": ["nic"]}, {"required": ["nic_in", "nic_out"]}]


class Machine(Spec):
    """One machine, or a group of `count` equal ones.

    Attributes:
        name: Unique in the cluster; a group of several gets `-0`, `-1`, ... appended.
        count: How many such machines there are.
        kind: The machine class that a profile's task times refer to.
        resources: Amounts by name, e.g. `cpu: 8`, `gpu: 2`, `memory: 48GiB`; any name is allowed.
        nic_in: Incoming bandwidth in bytes per second (written in bits: `10Gbps`).
        nic_out: Outgoing bandwidth in bytes per second; `nic` in a file sets both directions.
        labels: Free text for people and for schedulers.
        price_per_hour: In whatever currency the user thinks in.
    """

    model_config = ConfigDict(json_schema_extra=_one_nic_figure_is_enough)

    name: str = Field(min_length=1)
    count: Count = Field(default=1, ge=1)
    kind: str = "default"
    resources: Mapping[str, Amount] = Field(default_factory=dict)
    nic_in: BytesPerS
    nic_out: BytesPerS
    labels: Mapping[str, str] = Field(default_factory=dict)
    price_per_hour: Annotated[Number, Field(ge=0)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_nic_figure_means_both_directions(cls, data: object) -> object:
        if isinstance(data, Mapping) and "nic" in data:
            rest = {key: value for key, value in data.items() if key != "nic"}
            return {"nic_in": data["nic"], "nic_out": data["nic"]} | rest
        return data

    @property
    def host_names(self) -> tuple[str, ...]:
        """Name of every single machine of the group."""
        if self.count == 1:
            return (self.name,)
        return tuple(f"{self.name}-{i}" for i in range(self.count))


class Cluster(Spec):
    """All machines of a training job; machine m hosts graph part m.

    Attributes:
        version: Of the file format.
        machines: Machines and groups of equal ones.

    Example:
        >>> from headrace import Cluster, Machine
        >>> fast = Machine(name="fast", nic="10Gbps", resources={"cpu": 16, "memory": "64GiB"})
        >>> cluster = Cluster(machines=[fast, Machine(name="slow", count=2, nic="1Gbps")])
        >>> [host.name for host in cluster.hosts]
        ['fast', 'slow-0', 'slow-1']
    """

    version: Literal[1] = 1
    machines: tuple[Machine, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        seen: set[str] = set()
        for group, machine in enumerate(self.machines):
            for name in machine.host_names:
                if name in seen:
                    raise SpecError(
                        f"two machines are called {name!r}",
                        "give every machine its own name",
                        at=("machines", group, "name"),
                    )
                seen.add(name)
        return self

    @cached_property
    def hosts(self) -> tuple[Machine, ...]:
        """Every single machine, groups expanded."""
        return tuple(
            machine if machine.count == 1 else machine.model_copy(update={"name": name, "count": 1})
            for machine in self.machines
            for name in machine.host_names
        )

    @property
    def num_machines(self) -> int:
        """How many single machines there are."""
        return len(self.hosts)

    @cached_property
    def resource_names(self) -> tuple[str, ...]:
        """All resource names any machine has, sorted."""
        return tuple(sorted({name for machine in self.machines for name in machine.resources}))

    def capacities(self, resource_names: tuple[str, ...]) -> np.ndarray:
        """Amounts as an array of shape (num_machines, len(resource_names)); absent means 0."""
        rows = [
            [machine.resources.get(name, 0.0) for name in resource_names] for machine in self.hosts
        ]
        return np.array(rows, dtype=np.float64).reshape(self.num_machines, len(resource_names))

    def nic_in_bytes_per_s(self) -> np.ndarray:
        """Incoming bandwidth per machine."""
        return np.array([machine.nic_in for machine in self.hosts])

    def nic_out_bytes_per_s(self) -> np.ndarray:
        """Outgoing bandwidth per machine."""
        return np.array([machine.nic_out for machine in self.hosts])
