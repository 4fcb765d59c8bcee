"""A real Prometheus that watches a testbed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from headrace.testbed import Testbed

PORT = 9090
ASKS = """
import json, sys, urllib.parse, urllib.request
for path, fields in json.load(sys.stdin):
    url = f"http://127.0.0.1:{sys.argv[1]}{path}?{urllib.parse.urlencode(fields)}"
    with urllib.request.urlopen(url, timeout=30) as answer:
        print(json.dumps(answer.read().decode()))
"""


class Prometheus:
    """Debian's Prometheus on the first machine of a testbed, which scrapes all of them."""

    def __init__(self, bed: Testbed, folder: Path) -> None:
        self._bed, self._folder = bed, folder
        headrace = [sys.executable, "-m", "headrace", "dashboard", "--prometheus"]
        made = subprocess.run(bed.command("m0", headrace), stdout=subprocess.PIPE, check=True)
        config = yaml.safe_load(made.stdout)
        (scraped,) = config["scrape_configs"]
        assert len(scraped["static_configs"][0]["targets"]) == len(bed.hosts)
        # Ray keeps a value for 20 s: several scrapes, each with time enough on a busy machine.
        config["global"].update(scrape_interval="4s", scrape_timeout="4s")
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        words = ["prometheus", f"--config.file={folder / 'prometheus.yml'}"]
        words += [f"--storage.tsdb.path={folder / 'tsdb'}"]
        words += [f"--web.listen-address=127.0.0.1:{PORT}"]
        with (folder / "prometheus.log").open("wb") as log:
            command = bed.command("m0", words)
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def ask(self, *questions: tuple[str, dict[str, Any]]) -> list[str]:
        words = self._bed.command("m0", [sys.executable, "-c", ASKS, str(PORT)])
        text = json.dumps(questions)
        done = subprocess.run(
            words, input=text, capture_output=True, text=True, timeout=120, check=False
        )
        return [json.loads(line) for line in done.stdout.splitlines()]

    def follows(self, run: str) -> bool:
        """Whether it has seen the run make progress."""
        expression = f'changes(ray_headrace_iterations_total{{run="{run}"}}[10m]) > 0'
        answers = self.ask(("/-/ready", {}), ("/api/v1/query", {"query": expression}))
        return len(answers) == 2 and bool(json.loads(answers[1])["data"]["result"])

    def query(self, expression: str) -> dict[tuple[str, ...], float]:
        """Values by their labels, sorted by the labels' names; Ray's own labels are left out."""
        (answer,) = self.ask(("/api/v1/query", {"query": expression}))
        found = json.loads(answer)
        assert found["status"] == "success"
        return {
            tuple(value for _, value in sorted(each["metric"].items())): float(each["value"][1])
            for each in found["data"]["result"]
        }

    def log(self) -> str:
        return (self._folder / "prometheus.log").read_text()

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(60)
