"""How exactly traffic control shares a network card: three flows between two namespaces.

Needs root and iproute2. Run it with `--json` for one JSON object on the last line, `--quick` for
less than 50 s. The flows' rates come from the same policies that the simulator uses: `maxmin` for
1:1:1, `paced` with volumes 1:2:5, `priority` with three iterations for strict classes.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import describe_machine
from tests.support.traffic_flows import NIC_BYTES_PER_S, figures


def run(quick: bool, congestion: str) -> dict[str, Any]:
    """Everything, as one object."""
    found = figures(quick, congestion)
    return {
        "nic_mbit_per_s": NIC_BYTES_PER_S * 8 / 1e6,
        "tcp": congestion,
        **found,
        "ok": found["largest_error"] <= 0.05 and found["strict_top"] >= 0.94,
        "machine": describe_machine(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--quick", action="store_true", help="under 50 s")
    parser.add_argument("--tcp", default="cubic", help="bbr pauses for 0.2 s every 10 s")
    options = parser.parse_args()
    found = run(options.quick, options.tcp)
    print(json.dumps(found) if options.json else json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
