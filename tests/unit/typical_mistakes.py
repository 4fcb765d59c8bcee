"""What people get wrong, what they typed, and what they are told."""

from __future__ import annotations

from dataclasses import dataclass, field

SPECS = "--cluster cluster.yaml --job job.yaml"
FILES = "reference/files.md"
ERRORS = "reference/errors.md"


@dataclass(frozen=True)
class Mistake:
    """One of them.

    Attributes:
        name: What people did.
        words: What they typed after `headrace`.
        problem: What the first line says, somewhere.
        remedy: What the second line says, somewhere.
        page: Which page the third line names.
        code: Exit code.
        edits: Changes of the files in the folder: file, old text, new text.
        writes: Files that are added.
        needs: Package without which something else is the matter.
    """

    name: str
    words: str
    problem: str
    remedy: str
    page: str
    code: int = 2
    edits: tuple[tuple[str, str, str], ...] = ()
    writes: dict[str, str] = field(default_factory=dict)
    needs: str = ""


MISTAKES = (
    # The command line
    Mistake(
        "typo of a command",
        "simulat",
        "there is no command 'headrace simulat'",
        "did you mean `headrace simulate`?",
        ERRORS,
    ),
    Mistake(
        "typo of a nested command",
        "testbed uup",
        "there is no command 'headrace testbed uup'",
        "did you mean `headrace testbed up`?",
        "howto/testbed.md",
    ),
    Mistake(
        "typo of an option",
        f"plan {SPECS} --polcy maxmin",
        "headrace plan has no option --polcy",
        "did you mean --policy?",
        "reference/planner.md",
    ),
    Mistake(
        "arguments of the script without --",
        "run --local train.py --epochs 3",
        "headrace run has no option --epochs",
        "put -- before the arguments of the script",
        "howto/runs.md",
    ),
    Mistake(
        "a missing option",
        "simulate --cluster cluster.yaml",
        "headrace simulate: --job is missing",
        "add --job FILE",
        "reference/simulator.md",
    ),
    Mistake(
        "an option without its value",
        "simulate --cluster",
        "--cluster needs a value",
        "see `headrace simulate --help`",
        "reference/simulator.md",
    ),
    Mistake(
        "no steps",
        f"simulate {SPECS} --iterations 0",
        "invalid value of --iterations",
        "give a number of at least 1",
        "reference/simulator.md",
    ),
    Mistake(
        "a word instead of a number",
        f"simulate {SPECS} --iterations many",
        "invalid value of --iterations: ",
        "give a number of at least 1",
        "reference/simulator.md",
    ),
    # Paths
    Mistake(
        "wrong path",
        "plan --cluster clustre.yaml --job job.yaml",
        "the cluster file clustre.yaml does not exist",
        "did you mean cluster.yaml?",
        FILES,
    ),
    Mistake(
        "a folder instead of a file",
        "plan --cluster . --job job.yaml",
        ". is a directory, not a cluster file",
        "did you mean cluster.yaml?",
        FILES,
    ),
    Mistake(
        "an output folder that does not exist",
        f"plan {SPECS} -o out/plan.json",
        "out is not a directory, so out/plan.json cannot be written",
        "mkdir -p out",
        "reference/planner.md",
    ),
    Mistake(
        "a script that does not exist",
        "run --local trian.py",
        "there is no script trian.py",
        "did you mean train.py?",
        "howto/runs.md",
    ),
    Mistake(
        "a script with a syntax error",
        "run --local broken.py",
        "broken.py, line 2: this is not Python",
        "`python broken.py` shows the location",
        "howto/runs.md",
        writes={"broken.py": "x = 1\ndef f(:\n"},
    ),
    Mistake(
        "a graph that is not partitioned",
        "graph info cluster.yaml",
        "cluster.yaml is not a partitioned graph, it is a file",
        "create one with `headrace partition`",
        "howto/graphs.md",
    ),
    Mistake(
        "a folder of runs that does not exist",
        "status --runs nowhere",
        "there is no run in nowhere",
        "start one with `headrace run`",
        "howto/reports.md#watch-a-run",
    ),
    Mistake(
        "a run that does not exist",
        "report 20261115-nope",
        "there is no run '20261115-nope'",
        "choose one of",
        "howto/reports.md",
    ),
    Mistake(
        "a trace that does not exist",
        "trace trace.npz",
        "trace.npz cannot be read: No such file",
        "pass a file written by `headrace run` or `headrace profile`",
        "howto/reports.md",
    ),
    # What is in files
    Mistake(
        "wrong unit",
        f"plan {SPECS}",
        "machines[0].nic: '50GB' is not a bandwidth",
        "write it like 10Gbps",
        FILES,
        edits=(("cluster.yaml", "50Gbps", "50GB"),),
    ),
    Mistake(
        "a bandwidth without its unit",
        f"plan {SPECS}",
        "machines[0].nic: 50 bytes per second is too slow for a NIC",
        "write the bandwidth with its unit, like 10Gbps",
        FILES,
        edits=(("cluster.yaml", "50Gbps", "50"),),
    ),
    Mistake(
        "a negative rate",
        f"plan {SPECS}",
        "machines[0].nic: '-50Gbps' is not a bandwidth",
        "write it like 10Gbps",
        FILES,
        edits=(("cluster.yaml", "50Gbps", "-50Gbps"),),
    ),
    Mistake(
        "an old file version",
        f"plan {SPECS}",
        "version: 0 is not a version; this headrace reads version 1",
        "write `version: 1`",
        FILES,
        edits=(("job.yaml", "version: 1", "version: 0"),),
    ),
    Mistake(
        "a newer file version",
        f"plan {SPECS}",
        "the file has version 2, this headrace reads version 1",
        "upgrade headrace",
        FILES,
        edits=(("job.yaml", "version: 1", "version: 2"),),
    ),
    Mistake(
        "typo in a key",
        f"plan {SPECS}",
        "job.yaml, line 4: trainrs: unknown key",
        "did you mean `trainers`?",
        FILES,
        edits=(("job.yaml", "trainers: 6", "trainrs: 6"),),
    ),
    Mistake(
        "YAML that does not parse",
        f"plan {SPECS}",
        "cluster.yaml, line 2: this is not YAML",
        "check the indentation, colons, quotes and brackets",
        FILES,
        writes={"cluster.yaml": "machines: [\n"},
    ),
    Mistake(
        "an empty cluster",
        f"plan {SPECS}",
        "cluster.yaml, line 1: machines: it is empty",
        "write at least one entry",
        FILES,
        writes={"cluster.yaml": "machines: []\n"},
    ),
    Mistake(
        "files the wrong way round",
        "plan --cluster job.yaml --job cluster.yaml",
        "this looks like a job file, not a cluster file",
        "pass the cluster file here",
        FILES,
    ),
    Mistake(
        "half a plan",
        "explain plan.json",
        "plan.json, line 2: this is not JSON",
        "check the commas, colons, quotes and brackets",
        FILES,
        writes={"plan.json": '{\n  "version": 1,'},
    ),
    Mistake(
        "an unknown machine in a placement",
        f"simulate {SPECS} --placement placement.yaml",
        "the placement names machine 'm9', which the cluster does not have",
        "use one of m0, m1, m2, m3",
        FILES,
        writes={
            "placement.yaml": "samplers: [m0, m0, m1, m1, m2, m2, m3, m3, m0, m1, m2, m9]\n"
            "trainers: [m0, m1, m2, m3, m0, m1]\nservers: [m0]\n"
        },
    ),
    Mistake(
        "settings of a script that are none",
        "run --local train.py --set lr",
        "'lr' is not a setting",
        "write --set key=value",
        "howto/runs.md",
    ),
    # Names
    Mistake(
        "an unknown policy",
        f"simulate {SPECS} --policy fastest",
        "there is no flow policy 'fastest'",
        "use one of oes, maxmin",
        "reference/simulator.md",
    ),
    Mistake(
        "an unknown method",
        f"plan {SPECS} --method best",
        "there is no placement method 'best'",
        "use one of anneal",
        "reference/planner.md",
    ),
    Mistake(
        "a duration without its unit",
        f"plan {SPECS} --budget 2x",
        "'2x' is not a duration",
        "write it like 20ms",
        "reference/planner.md",
    ),
    Mistake(
        "an unknown source of a graph",
        "partition graph.csv2 --parts 2 -o parts2",
        "graph.csv2 does not exist",
        "generated:nodes=1e6",
        "howto/graphs.md",
    ),
    Mistake(
        "no Ray cluster at the address",
        "cluster discover --address 127.0.0.1:1",
        "there is no Ray cluster at 127.0.0.1:1",
        "give the address of its head: --address HOST:6379",
        "howto/clusters.md#discover",
        needs="ray",
    ),
    # What does not fit
    Mistake(
        "too few GPUs",
        f"plan {SPECS}",
        "the job needs 9 gpu, the cluster has 8 gpu beside its stores, 1 gpu short",
        "lower trainers from 9 to 8, or add a machine",
        f"{ERRORS}#a-job-that-does-not-fit",
        code=3,
        edits=(("job.yaml", "trainers: 6", "trainers: 9"), ("job.yaml", "{cpu: 2", "{cpu: 0")),
    ),
    Mistake(
        "not enough memory",
        f"plan {SPECS}",
        "a sampler needs 70 GB memory, no machine has more than 48 GB memory beside its store",
        "lower demands.sampler.memory to 48000MB or add a larger machine",
        f"{ERRORS}#a-job-that-does-not-fit",
        code=3,
        edits=(("job.yaml", "memory: 7GB", "memory: 70GB"),),
    ),
)
