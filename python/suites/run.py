"""Runs the public suites with Hoplite, and writes their results into docs/dev/suites.md.

python suites/run.py --torch ~/pytorch --ray ~/ray
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

from stores import Cluster  # noqa: E402

ROOT = HERE.parent.parent
TESTS = ROOT / "python" / "tests"
PAGE = ROOT / "docs" / "dev" / "suites.md"
BEGIN, END = "<!-- written by suites/run.py -->\n", "<!-- end -->\n"
EXCLUDED = "excluded: "
SECONDS_PER_TEST = 300


@dataclass(frozen=True)
class Suite:
    name: str
    arguments: tuple[str, ...]
    """The arguments for pytest in python/."""
    environment: dict[str, str] = field(default_factory=dict)


@dataclass
class Outcome:
    counts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)


def suites(torch: Path | None, ray: Path | None) -> Iterator[Suite]:
    for size in ("3", "4"):
        settings = {"WORLD_SIZE": size}
        yield Suite(
            f"torch: `DistributedTest`, {size} ranks", ("suites/torch_distributed.py",), settings
        )
    if torch is not None:
        yield Suite(
            "torch: `test_c10d_fault_tolerance.py`",
            ("suites/torch_fault_tolerance.py",),
            {"TORCH_CHECKOUT": str(torch)},
        )
    yield Suite(
        "torchft: the suite of its transports",
        (str(TESTS / "torch" / "test_checkpoint.py"), "-k", "torchft"),
    )
    if ray is not None:
        arguments = ("--noconftest", "-p", "ray_collective", str(ray / COLLECTIVE))
        checkout = {"RAY_CHECKOUT": str(ray)}
        yield Suite("Ray: its tests of collective groups", arguments, checkout)
        yield Suite(
            "the same, with arrays that may be written to", arguments, {**checkout, "WRITABLE": "1"}
        )


COLLECTIVE = "python/ray/util/collective/tests/single_node_cpu_tests"


def run(suite: Suite) -> Outcome:
    # A short path, because Ray's sockets below it may have at most 107 bytes.
    with (
        tempfile.TemporaryDirectory(prefix="suite-", dir="/tmp") as directory,
        Cluster(Path(directory), nodes=1, memory="256MiB") as cluster,
    ):
        report = Path(directory) / "report.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "exclusions",
            "--timeout",
            str(SECONDS_PER_TEST),
        ]
        command += ["-p", "no:cacheprovider", "--junitxml", str(report), *suite.arguments]
        environment = {
            **os.environ,
            **suite.environment,
            "PYTHONPATH": f"{HERE}:{TESTS}",
            "TMPDIR": directory,
        }
        if "ray_collective" not in suite.arguments:
            environment["HOPLITE_SOCKET"] = cluster.sockets[0]
        done = subprocess.run(command, cwd=HERE.parent, env=environment, check=False)
        if done.returncode not in (0, 1):
            sys.exit(f"{suite.name}: pytest ended with {done.returncode}")
        return read(report)


def read(report: Path) -> Outcome:
    outcome = Outcome()
    for case in xml.parse(report).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        if (skipped := case.find("skipped")) is not None:
            reason = skipped.get("message", "")
            if reason.startswith(EXCLUDED):
                outcome.counts["excluded"] += 1
                outcome.reasons[reason.removeprefix(EXCLUDED)] += 1
            else:
                outcome.counts["skipped"] += 1
        elif case.find("failure") is not None or case.find("error") is not None:
            outcome.counts["failed"] += 1
            outcome.failed.append(name)
        else:
            outcome.counts["passed"] += 1
    return outcome


def table(outcomes: dict[str, Outcome]) -> str:
    commit = subprocess.check_output(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True
    ).strip()
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("torch", "ray", "torchft")
    )
    lines = [
        f"At commit {commit}, with {versions}.",
        "",
        "| suite | passed | failed | excluded by us | skipped by the suite |",
    ]
    lines.append("| --- | --- | --- | --- | --- |")
    for name, outcome in outcomes.items():
        counts = [outcome.counts[what] for what in ("passed", "failed", "excluded", "skipped")]
        lines.append(f"| {name} | {' | '.join(map(str, counts))} |")
    lines += ["", "Excluded by us:", "", "| suite | tests | reason |", "| --- | --- | --- |"]
    for name, outcome in outcomes.items():
        lines += [
            f"| {name} | {count} | {reason} |" for reason, count in outcome.reasons.most_common()
        ]
    for name, outcome in outcomes.items():
        lines += [f"\nFailed in {name}: {', '.join(outcome.failed)}"] if outcome.failed else []
    return "\n".join(lines) + "\n"


def main() -> int:
    os.environ.setdefault("HOPLITE_BINARIES", str(ROOT / "target" / "debug"))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--torch", type=Path, help="a checkout of torch, at the tag of the version installed"
    )
    parser.add_argument(
        "--ray", type=Path, help="a checkout of Ray, at the tag of the version installed"
    )
    parser.add_argument("--only", default="", help="a pattern: the suites to run")
    options = parser.parse_args()
    chosen = [s for s in suites(options.torch, options.ray) if re.search(options.only, s.name)]
    outcomes = {suite.name: run(suite) for suite in chosen}
    found = table(outcomes)
    print(found)
    if options.only or not (options.torch and options.ray):
        print(f"not all suites were run: {PAGE} stays as it is")
    else:
        page = PAGE.read_text()
        before, after = page.partition(BEGIN)[0], page.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}{found}{END}{after}")
    return any(outcome.counts["failed"] for outcome in outcomes.values())


if __name__ == "__main__":
    sys.exit(main())
