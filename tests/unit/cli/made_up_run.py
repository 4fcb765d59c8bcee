"""A run that never ran: what the verbs that look at runs are shown in tests."""

from __future__ import annotations

from headrace.core.job import Role
from headrace.runtime.run_dir.status import MachineStatus, RunState, Status, TaskState, TaskStatus

NOON_S = 1_794_700_800.0


def made_up_status(
    run_id: str, num_machines: int = 4, num_trainers: int = 3, num_samplers: int = 2
) -> Status:
    """A running job; trainer 1 waits for sampler1.0, which waits for store3."""
    machines = tuple(
        MachineStatus(
            name=f"m{m}",
            address=f"10.78.0.{m + 1}",
            nic_in_bytes_per_s=3.1e8 / (m + 1),
            nic_out_bytes_per_s=1.2e9 / (m + 1),
        )
        for m in range(num_machines)
    )
    tasks = [_task(f"store{m}", Role.STORE, m, 0.2) for m in range(num_machines)]
    for w in range(num_trainers):
        for i in range(num_samplers):
            waits = "store3" if (w, i) == (1, 0) else ""
            name, m = f"sampler{w}.{i}", (w + i) % num_machines
            tasks.append(_task(name, Role.SAMPLER, m, 0.3 if waits else 0.9, waits, 4213))
        waits = "sampler1.0" if w == 1 else ""
        tasks.append(_task(f"trainer{w}", Role.TRAINER, w % num_machines, 0.4, waits, 4211))
    return Status(
        run_id=run_id,
        state=RunState.RUNNING,
        since_s=NOON_S - 745,
        updated_s=NOON_S,
        job="sage",
        iterations=4210,
        epoch=7,
        figures={"loss": 0.48742, "note": "[bold]"},
        samples_per_s=7983.2,
        idle_share=0.12,
        waits_for="sampling",
        machines=machines,
        tasks=tuple(tasks),
    )


def _task(
    name: str, role: Role, m: int, busy_share: float, waits: str = "", iteration: int | None = None
) -> TaskStatus:
    return TaskStatus(
        name=name,
        role=role,
        machine=f"m{m}",
        state=TaskState.RUNNING,
        pid=100,
        waits_for=waits,
        iteration=iteration,
        busy_share=busy_share,
        rss_bytes=4.2e8,
    )
