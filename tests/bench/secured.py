"""A broadcast over shaped links with TLS, with a token, and with neither.

    cd tests && sudo python3 -m bench.secured --mebibytes 64 --receivers 4 --rounds 5

Times stand beside S/B: the least time for an object of S bytes to reach one host over a link of B
bytes per second.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from lab import Lab, LabError, NotAvailable, Plan, parse_rate
from lab.daemons import Hoplite

from .errors import BenchError
from .systems.base import ending
from .team import Team
from .workloads import WORKLOADS

ROOT: Final = Path(__file__).resolve().parents[2]
KINDS: Final = ("neither", "token", "TLS")
_WORKER: Final = "hoplite-bench-worker"
_WORKLOAD: Final = "broadcast"
_PAYLOAD: Final = 1448 / 1514
_SPARE_BYTES: Final = 64 << 20
_TIMEOUT_S: Final = 120


def measure(programs: Path, plan: Plan, size_bytes: int, rounds: int) -> dict[str, list[float]]:
    if not (programs / _WORKER).is_file():
        raise NotAvailable(f"there is no {_WORKER} in {programs}")
    finishers = WORKLOADS[_WORKLOAD].finishers(plan.hosts)
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with ExitStack() as stack:
        teams = {
            kind: stack.enter_context(_cluster(programs, plan, size_bytes, kind)) for kind in KINDS
        }
        for count in range(rounds + 1):
            for kind, team in teams.items():
                seconds = team.round(_WORKLOAD, size_bytes, finishers, 0, _TIMEOUT_S).seconds
                if count > 0:
                    found[kind].append(seconds)
    return found


@contextmanager
def _cluster(programs: Path, plan: Plan, size_bytes: int, kind: str) -> Iterator[Team]:
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        lab = stack.enter_context(Lab(plan))
        security = _security(programs, place, lab, kind)
        memory = str(3 * size_bytes + _SPARE_BYTES)
        stack.enter_context(
            Hoplite(
                lab, programs, memory, [lab.hosts[-1].name], ["--log", "warn"], security=security
            )
        )
        running = stack.enter_context(ExitStack())
        team = stack.enter_context(Team("hoplite", place / "team.sock", plan.host_names))
        workers = [
            host.popen(
                [programs / _WORKER, str(team.path), str(rank), str(plan.hosts)],
                stdin=subprocess.DEVNULL,
            )
            for rank, host in enumerate(lab.hosts)
        ]
        team.gather(running.enter_context(ending(workers)))
        yield team


def _security(programs: Path, place: Path, lab: Lab, kind: str) -> Sequence[str]:
    if kind == "token":
        token = place / "token"
        token.touch(0o600)
        token.write_text("the secret of a benchmark\n")
        return ["--token-file", str(token)]
    if kind == "TLS":
        names = ",".join(["all", *(host.address for host in lab.hosts)])
        certs = place / "certs"
        made = subprocess.run(
            [programs / "hoplite", "certs", certs, names],
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode != 0:
            raise BenchError(f"no certificates: {made.stderr.strip()}")
        files = {"--tls-cert": "all.pem", "--tls-key": "all-key.pem", "--tls-ca": "ca.pem"}
        return [word for flag, file in files.items() for word in (flag, str(certs / file))]
    return ["--insecure"]


def report(plan: Plan, size_bytes: int, found: dict[str, list[float]]) -> dict[str, Any]:
    limit_s = size_bytes / (plan.rate_bits_s / 8 * _PAYLOAD)
    medians = {kind: statistics.median(seconds) for kind, seconds in found.items()}
    return {
        "size_bytes": size_bytes,
        "receivers": plan.hosts - 1,
        "limit_s": limit_s,
        "seconds": found,
        "median_s": medians,
    }


def text(told: dict[str, Any]) -> str:
    lines = [
        f"{told['size_bytes']} bytes to {told['receivers']} hosts; S/B is {told['limit_s']:.3f} s",
        "",
    ]
    lines += [
        "| with | s, median | least | most | beside neither |",
        "| --- | --- | --- | --- | --- |",
    ]
    for kind, seconds in told["seconds"].items():
        median = told["median_s"][kind]
        beside = f"{100 * (median / told['median_s'][KINDS[0]] - 1):+.1f}%"
        lines.append(
            f"| {kind} | {median:.3f} | {min(seconds):.3f} | {max(seconds):.3f} | {beside} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python3 -m bench.secured",
        description="TLS, a token and neither in one run. Needs root.",
    )
    parser.add_argument(
        "--mebibytes", type=int, default=64, metavar="N", help="the size of the object [64]"
    )
    parser.add_argument(
        "--receivers", type=int, default=4, metavar="N", help="how many hosts get it [4]"
    )
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="how many count [5]")
    parser.add_argument(
        "--rate", type=parse_rate, default="200mbit", metavar="RATE", help="of each link [200mbit]"
    )
    parser.add_argument(
        "--programs",
        type=Path,
        default=ROOT / "target" / "dist",
        metavar="DIR",
        help="the binaries [target/dist]",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    arguments = parser.parse_args()
    if min(arguments.mebibytes, arguments.receivers, arguments.rounds) < 1:
        parser.error("it takes at least a mebibyte, a receiver and a round")
    plan = Plan(hosts=arguments.receivers + 1, rate_bits_s=arguments.rate)
    size_bytes = arguments.mebibytes << 20
    try:
        found = measure(arguments.programs.resolve(), plan, size_bytes, arguments.rounds)
    except (BenchError, LabError, OSError) as error:
        print(f"secured: {error}", file=sys.stderr)
        return 1
    told = report(plan, size_bytes, found)
    print(json.dumps(told) if arguments.json else text(told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
