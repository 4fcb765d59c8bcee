"""Cluster description: machines, their resources, NICs, labels and price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """One machine, or a group of `count` identical machines.

    Attributes:
        name: Unique in the cluster; a group of several gets `-0`, `-1`, ... appended.
        count: Number of identical machines.
        kind: Machine class that the profile's task times refer to.
        resources: Amounts by name, e.g. `cpu: 8`, `gpu: 2`, `memory: 48GiB`; any name is allowed.
        nic_in: Ingress bandwidth in bytes per second (written in bits: `10Gbps`).
        nic_out: Egress bandwidth in bytes per second; `nic` in a file sets both directions.
        labels: Free-form key-value labels.
        price_per_hour: Price per machine, in any currency.
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
        """Names of all machines of the group."""
        if self.count == 1:
            return (self.name,)
        return tuple(f"{self.name}-{i}" for i in range(self.count))


def check_host_names(machines: Sequence[Machine]) -> None:
    """Check that all machines, groups expanded, have different names; raises `SpecError`."""
    seen: set[str] = set()
    for group, machine in enumerate(machines):
        for name in machine.host_names:
            if name in seen:
                raise SpecError(
                    f"two machines have the name {name!r}",
                    "give every machine a unique name",
                    at=("machines", group, "name"),
                )
            seen.add(name)


class Cluster(Spec):
    """All machines of a training job; machine m hosts graph partition m.

    Attributes:
        version: Version of the file format.
        machines: Machines and groups of identical machines.

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
        check_host_names(self.machines)
        return self

    @cached_property
    def hosts(self) -> tuple[Machine, ...]:
        """All machines, groups expanded."""
        return tuple(
            machine if machine.count == 1 else machine.model_copy(update={"name": name, "count": 1})
            for machine in self.machines
            for name in machine.host_names
        )

    @property
    def num_machines(self) -> int:
        """Number of machines, groups expanded."""
        return len(self.hosts)

    @cached_property
    def resource_names(self) -> tuple[str, ...]:
        """Sorted names of the resources of all machines."""
        return tuple(sorted({name for machine in self.machines for name in machine.resources}))

    def capacities(self, resource_names: tuple[str, ...]) -> np.ndarray:
        """Amounts, shape (num_machines, len(resource_names)); 0 where a machine has none."""
        rows = [
            [machine.resources.get(name, 0.0) for name in resource_names] for machine in self.hosts
        ]
        return np.array(rows, dtype=np.float64).reshape(self.num_machines, len(resource_names))

    def nic_in_bytes_per_s(self) -> np.ndarray:
        """Ingress bandwidth per machine."""
        return np.array([machine.nic_in for machine in self.hosts])

    def nic_out_bytes_per_s(self) -> np.ndarray:
        """Egress bandwidth per machine."""
        return np.array([machine.nic_out for machine in self.hosts])
