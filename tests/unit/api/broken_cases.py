"""Files with one mistake each, the line it is on, and what the message must say."""

from __future__ import annotations

from typing import NamedTuple


class Case(NamedTuple):
    id: str
    kind: str
    text: str
    line: int
    problem: str
    remedy: str


JOB = "trainers: 4\nbatch_size: 8\n"
PROFILE = """\
task_times:
  store: {default: 1ms}
store_traffic: {bytes_per_seed: 1KB}
batch_traffic: {bytes_per_seed: 1KB}
"""

CASES = [
    # --- keys -----------------------------------------------------------------------------------
    Case("misspelt top-level key", "job", JOB + "trianers: 4\n", 3, "unknown key", "`trainers`"),
    Case("key in capitals", "job", JOB + "Window: 4\n", 3, "unknown key", "`window`"),
    Case("key with a dash", "job", JOB + "model-bytes: 4\n", 3, "unknown key", "`model_bytes`"),
    Case("the paper's word", "job", "workers: 4\nbatch_size: 8\n", 1, "unknown key", "`trainers`"),
    Case(
        "a key like no other",
        "job",
        JOB + "zzz: 4\n",
        3,
        "zzz: unknown key",
        "known keys: version, ",
    ),
    Case(
        "misspelt key of a machine",
        "cluster",
        "machines:\n  - name: a\n    nicc: 1Gbps\n",
        3,
        "machines[0].nicc: unknown key",
        "`nic`",
    ),
    Case(
        "bandwidth for nic",
        "cluster",
        "machines:\n  - {name: a,\n     bandwidth: 1Gbps}\n",
        3,
        "unknown key",
        "`nic`",
    ),
    Case(
        "misspelt key deep in a profile",
        "profile",
        PROFILE.replace("1ms", "{mean: 1ms, variaton: {}}"),
        2,
        "task_times.store.default.variaton: unknown key",
        "`variation`",
    ),
    Case(
        "misspelt role",
        "job",
        JOB + "demands:\n  sampler: {cpu: 1}\n  trianer: {cpu: 1}\n",
        5,
        "demands.trianer: 'trianer' is not known",
        "`trainer`",
    ),
    Case(
        "missing key",
        "job",
        "# a job\nbatch_size: 8\n",
        2,
        "`trainers` is missing",
        "`trainers: 4`",
    ),
    Case(
        "missing bandwidth",
        "cluster",
        "machines:\n- name: a\n  nic: 1Gbps\n- name: b\n",
        4,
        "machines[1]: `nic_in` is missing",
        "`nic: 10Gbps`",
    ),
    Case(
        "half a bandwidth",
        "cluster",
        "machines:\n- name: a\n  nic_in: 1Gbps\n",
        2,
        "`nic_out` is missing",
        "`nic: 10Gbps`",
    ),
    Case(
        "duplicate key",
        "job",
        "trainers: 4\nbatch_size: 8\ntrainers: 5\n",
        3,
        "duplicate key `trainers`, first on line 1",
        "remove one",
    ),
    Case(
        "duplicate key deep down",
        "cluster",
        "machines:\n- name: a\n  nic: 1Gbps\n  resources:\n    cpu: 1\n    gpu: 1\n    cpu: 2\n",
        7,
        "duplicate key `cpu`, first on line 5",
        "remove one",
    ),
    # --- units ----------------------------------------------------------------------------------
    Case(
        "a size for a bandwidth",
        "cluster",
        "machines:\n- name: a\n  nic: 10GB\n",
        3,
        "machines[0].nic: '10GB' is not a bandwidth",
        "like 10Gbps (units: bps, Kbps, Mbps, Gbps",
    ),
    Case(
        "a unit in small letters",
        "cluster",
        "machines:\n- name: a\n  nic_in: 10gbps\n  nic_out: 1Gbps\n",
        3,
        "machines[0].nic_in: '10gbps' is not a bandwidth",
        "units: bps",
    ),
    Case(
        "an unknown size",
        "cluster",
        "machines:\n- name: a\n  nic: 1Gbps\n  resources:\n    memory: 48 gigs\n",
        5,
        "machines[0].resources.memory: '48 gigs' is not a resource amount",
        "48GiB",
    ),
    Case(
        "a bandwidth for a size",
        "job",
        JOB + "model_bytes: 5Gbps\n",
        3,
        "'5Gbps' is not a size",
        "units: B, KB",
    ),
    Case(
        "an unknown duration",
        "profile",
        PROFILE.replace("1ms", "1msec"),
        2,
        "task_times.store.default.mean: '1msec' is not a duration",
        "like 20ms (units: ns, us, ms, s, min, h)",
    ),
    Case(
        "a list for a duration",
        "profile",
        PROFILE.replace("1ms", "[1ms, 2ms]"),
        2,
        "a list is not a duration",
        "like 20ms",
    ),
    Case(
        "a bandwidth without its unit",
        "cluster",
        "machines:\n- name: a\n  nic: 10\n",
        3,
        "10 bytes per second is too slow for a NIC",
        "with its unit, like 10Gbps",
    ),
    Case(
        "a negative amount",
        "cluster",
        "machines:\n- name: a\n  nic: 1Gbps\n  resources: {cpu: -1}\n",
        4,
        "machines[0].resources.cpu: -1",
        "greater than or equal to 0",
    ),
    Case(
        "no bandwidth at all",
        "cluster",
        "machines:\n- name: a\n  nic: 0Gbps\n",
        3,
        "machines[0].nic",
        "greater than 0",
    ),
    # --- values ---------------------------------------------------------------------------------
    Case("a word for a number", "job", "trainers: four\nbatch_size: 8\n", 1, "'four'", "such as 4"),
    Case("half a trainer", "job", "trainers: 1.5\nbatch_size: 8\n", 1, "1.5", "such as 4"),
    Case(
        "yes is no number", "job", "trainers: yes\nbatch_size: 8\n", 1, "True is not", "such as 4"
    ),
    Case("no trainer", "job", "trainers: 0\nbatch_size: 8\n", 1, "trainers: 0", "equal to 1"),
    Case("nothing", "job", "batch_size: 8\ntrainers:\n", 2, "nothing is not", "such as 4"),
    Case(
        "infinity",
        "profile",
        "seeds_per_sampler: .inf\n" + PROFILE,
        1,
        "inf is not a finite",
        "such as",
    ),
    Case("unknown choice", "job", JOB + "sync: rign\n", 3, "'rign' is not known", "`ring`"),
    Case("window 0", "job", JOB + "window: 0\n", 3, "window of 0", "`unlimited`"),
    Case("window -1", "job", JOB + "window: -1\n", 3, "window: -1", "`unlimited`"),
    Case("window infinite", "job", JOB + "window: infinite\n", 3, "'infinite'", "`unlimited`"),
    Case("a number as a name", "job", "name: 12\n" + JOB, 1, "12 is not text", '"12"'),
    Case(
        "more samplers than seeds",
        "job",
        "trainers: 1\nsamplers_per_trainer: 9\nbatch_size: 8\n",
        3,
        "batch_size 8 gives 9 samplers",
        "increase batch_size",
    ),
    Case(
        "a demand for ring steps",
        "job",
        JOB + "demands:\n  ring: {cpu: 1}\n",
        4,
        "ring steps run inside their trainer",
        "remove it",
    ),
    Case(
        "a list for a mapping", "job", JOB + "demands: [cpu]\n", 3, "found a list", "`key: value`"
    ),
    Case("no demands below", "job", JOB + "demands:\n", 3, "found nothing", "or remove it"),
    Case("no machine", "cluster", "machines: []\n", 1, "machines: it is empty", "at least one"),
    Case(
        "a mapping for a list", "cluster", "machines: {a: 1}\n", 1, "found a mapping", "`- ` line"
    ),
    Case(
        "two machines of one name",
        "cluster",
        "machines:\n- {name: a, nic: 1Gbps}\n- {name: b, nic: 1Gbps}\n- {name: a, nic: 1Gbps}\n",
        4,
        "two machines have the name 'a'",
        "a unique name",
    ),
    Case(
        "a group that makes a name twice",
        "cluster",
        "machines:\n- {name: a-1, nic: 1Gbps}\n- name: a\n  nic: 1Gbps\n  count: 2\n",
        3,
        "two machines have the name 'a-1'",
        "a unique name",
    ),
    Case(
        "no machine class",
        "profile",
        PROFILE.replace("{default: 1ms}", "1ms"),
        2,
        "task_times.store: expected a mapping, found '1ms'",
        "`store: {default: 20ms}`",
    ),
    Case(
        "an uneven matrix",
        "profile",
        PROFILE.replace("{bytes_per_seed: 1KB}\nb", "\n  matrix:\n  - [1, 2]\n  - [1]\nb"),
        6,
        "row 2 of the matrix has 1 columns",
        "make it square",
    ),
    Case(
        "a matrix and a model",
        "profile",
        PROFILE.replace("{bytes_per_seed: 1KB}\nb", "\n  matrix: [[1]]\n  bytes_per_seed: 1KB\nb"),
        5,
        "matrix and bytes_per_seed exclude",
        "keep the matrix",
    ),
    Case(
        "locality above 1",
        "profile",
        PROFILE.replace("{bytes_per_seed: 1KB}\nb", "{locality: 1.2}\nb"),
        3,
        "store_traffic.locality: 1.2",
        "less than or equal to 1",
    ),
    Case(
        "two variations",
        "profile",
        PROFILE.replace(
            "1ms", "{mean: 1s,\n    variation: {peak_to_mean: 2,\n    quantiles: [1]}}"
        ),
        4,
        "peak_to_mean and quantiles exclude each other",
        "keep one",
    ),
    Case(
        "an unknown source",
        "profile",
        PROFILE + "source: guessed\n",
        5,
        "source: 'guessed' is not known",
        "measured, synthetic",
    ),
    # --- versions and kinds ---------------------------------------------------------------------
    Case("a later version", "job", "version: 2\n" + JOB, 1, "reads version 1", "upgrade headrace"),
    Case("no version", "job", "version: one\n" + JOB, 1, "'one' is not a version", "`version: 1`"),
    Case(
        "version true", "job", "version: true\n" + JOB, 1, "True is not a version", "`version: 1`"
    ),
    Case("a job for a cluster", "cluster", JOB, 1, "looks like a job file", "as the job"),
    Case(
        "a cluster for a job",
        "job",
        "machines:\n- {name: a, nic: 1Gbps}\n",
        1,
        "looks like a cluster file",
        "as the cluster",
    ),
    # --- YAML -----------------------------------------------------------------------------------
    Case("a tab", "job", "trainers: 4\ndemands:\n\tps: {cpu: 1}\n", 3, "not YAML", "not with tabs"),
    Case("two colons", "job", "trainers: 4\nname: a: b\n", 2, "not YAML", "colons"),
    Case(
        "an open bracket", "job", "trainers: 4\ndemands: {ps: {cpu: 1}\n", 3, "not YAML", "brackets"
    ),
    Case("an open quote", "job", 'trainers: 4\nname: "a\n', 3, "not YAML", "quotes"),
    Case("two documents", "job", JOB + "---\n" + JOB, 3, "several documents", "`---`"),
    Case("an unknown alias", "job", JOB + "name: *nobody\n", 3, "not YAML", "around this line"),
    Case("a python tag", "job", JOB + "name: !!python/name:os.system\n", 3, "not YAML", "`!tag`"),
    Case("no such date", "job", JOB + "name: 2026-13-01\n", 3, "'2026-13-01'", "in quotes"),
    Case("a control character", "job", JOB + "name: a\x07b\n", 3, "not YAML", "around this line"),
    Case("only a list", "job", "- trainers\n- 4\n", 1, "found a list", "headrace schema job"),
    Case("only a word", "job", "trainers\n", 1, "found only 'trainers'", "headrace schema job"),
    # --- placements -----------------------------------------------------------------------------
    Case(
        "an unknown machine",
        "placement",
        "samplers: [m0, m1]\ntrainers:\n- m11\n",
        3,
        "trainers[0]: the placement names machine 'm11'",
        "m1",
    ),
    Case(
        "too few samplers",
        "placement",
        "trainers: [m0]\nsamplers: [m0]\n",
        2,
        "1 samplers, but the job has 2",
        "each of the 2 samplers",
    ),
    Case(
        "servers of a ring",
        "placement",
        "trainers: [m0]\nsamplers: [m0, m1]\nservers: [m0]\n",
        3,
        "1 servers, but the job has 0",
        "remove servers",
    ),
    Case(
        "indices for names", "placement", "trainers: [0]\nsamplers: []\n", 1, "0 is not text", '"0"'
    ),
]
