"""Weights to eight workers over slow links, while one of them is killed and another one joins.

    cd tests && sudo ../python/.venv/bin/python -m bench.weights --megabytes 128 --versions 6

Needs `make python`. The trainer on h0 puts versions with `hoplite.torch.put_state_dict`; workers
get them into existing tensors and compare each element. The output has the time until the last
worker has a version, beside S/B: the least time for the bytes to reach one host.
"""

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from lab import Lab, NotAvailable, Plan, parse_rate, registry
from lab.daemons import Hoplite

from .errors import BenchError, Missing

ROOT: Final = Path(__file__).resolve().parents[2]
_NAME: Final = "policy"
_TENSORS: Final = 24
_PAYLOAD: Final = 1448 / 1514
#: Versions in a store's memory: two complete ones, one being put, and one being deleted.
_VERSIONS_KEPT: Final = 4
_SPARE_BYTES: Final = 64 << 20
_TIMEOUT_S: Final = 120.0
_POLL_S: Final = 0.01


def weights(size_bytes: int, version: int) -> dict[str, Any]:
    import torch

    length = max(1, size_bytes // _TENSORS // 4)
    return {
        f"layer.{n}": torch.arange(length, dtype=torch.int32).add_(version * 1000 + n)
        for n in range(_TENSORS)
    }


def work(pipe: Connection, socket: str, size_bytes: int, last: int) -> None:
    import torch

    import hoplite
    from hoplite.torch import get_state_dict

    torch.set_num_threads(1)
    room = weights(size_bytes, 0)
    with hoplite.connect(socket) as client:
        pipe.send("ready")
        pipe.recv()
        seen = None
        while seen != last:
            got = get_state_dict(_NAME, room, newer_than=seen, client=client, timeout=_TIMEOUT_S)
            had = time.monotonic()
            seen = got.version
            expected = weights(size_bytes, seen)
            wrong = [key for key in expected if not torch.equal(room[key], expected[key])]
            if wrong:
                raise AssertionError(f"version {seen} has other elements in {', '.join(wrong)}")
            pipe.send((seen, had))


@dataclass
class Worker:
    host: str
    pipe: Connection
    process: Any

    def told(self) -> Any:
        try:
            if self.pipe.poll(_TIMEOUT_S):
                return self.pipe.recv()
        except EOFError:
            self.process.join(_TIMEOUT_S)
            raise BenchError(
                f"the worker of {self.host} has ended with {self.process.exitcode}"
            ) from None
        raise BenchError(f"the worker of {self.host} says nothing for {_TIMEOUT_S:g} s")

    def had(self, version: int) -> float:
        told: tuple[int, float] = self.told()
        if told[0] != version:
            raise BenchError(
                f"the worker of {self.host} has version {told[0]}, and {version} was put"
            )
        return told[1]


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    try:
        import hoplite
        from hoplite.torch import put_state_dict
    except ImportError as error:
        raise Missing(
            f"{error}: run `make python`, and this with python/.venv/bin/python"
        ) from error
    size_bytes = arguments.megabytes * 1_000_000
    limit_s = size_bytes / (arguments.rate / 8 * _PAYLOAD)
    middle = arguments.versions // 2 + 1
    plan = Plan(hosts=arguments.workers + 2, rate_bits_s=arguments.rate)
    versions = []
    with ExitStack() as cleanup:
        lab = cleanup.enter_context(Lab(plan))
        memory = str(_VERSIONS_KEPT * size_bytes + _SPARE_BYTES)
        cleanup.enter_context(Hoplite(lab, arguments.programs, memory=memory))
        workers = _started(lab, size_bytes, arguments.versions, cleanup)
        client = cleanup.enter_context(hoplite.connect(_socket(lab, "h0")))
        *staying, joining = workers
        leaving = staying[0]
        for worker in staying:
            worker.pipe.send("begin")
        for version in range(1, arguments.versions + 1):
            state = weights(size_bytes, version)
            before = lab.traffic()[leaving.host]
            began = time.monotonic()
            put_state_dict(_NAME, state, version=version, client=client, timeout=_TIMEOUT_S)
            put = time.monotonic()
            found: dict[str, Any] = {"version": version}
            if version == middle:
                while (lab.traffic()[leaving.host] - before).received_bytes < size_bytes // 4:
                    if time.monotonic() > put + _TIMEOUT_S:
                        raise BenchError(f"nothing comes to {leaving.host}")
                    time.sleep(_POLL_S)
                if leaving.pipe.poll():
                    raise BenchError(
                        f"{leaving.host} has all before its worker is killed: send more megabytes"
                    )
                leaving.process.kill()
                if arguments.kill == "host":
                    lab.kill(leaving.host)
                staying.remove(leaving)
                joined = time.monotonic()
                joining.pipe.send("begin")
                found["killed"] = arguments.kill
            had = max(worker.had(version) for worker in staying)
            if version == middle:
                found["joined_after_s"] = round(joining.had(version) - joined, 3)
                staying.append(joining)
            seconds = had - began
            found |= {
                "seconds": round(seconds, 3),
                "put_s": round(put - began, 3),
                "limits": round(seconds / limit_s, 4),
            }
            versions.append(found)
        for worker in workers:
            worker.process.join(_TIMEOUT_S)
        ends = {worker.host: worker.process.exitcode for worker in workers}
    quiet = [found["limits"] for found in versions if "killed" not in found]
    return {
        "workers": arguments.workers,
        "megabytes": arguments.megabytes,
        "rate_bits_s": arguments.rate,
        "limit_s": round(limit_s, 3),
        "versions": versions,
        "undisturbed_limits": statistics.median(quiet),
        "ends": ends,
    }


def _socket(lab: Lab, host: str) -> str:
    return str(registry.STATE / lab.name / f"{host}.sock")


def _started(lab: Lab, size_bytes: int, last: int, cleanup: ExitStack) -> list[Worker]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "hoplite.torch"])
    workers = []
    for host in lab.plan.host_names[1:]:
        pipe, other = context.Pipe()
        process = context.Process(
            target=work, args=(other, _socket(lab, host), size_bytes, last), daemon=True
        )
        process.start()
        cleanup.callback(process.kill)
        other.close()
        workers.append(Worker(host, pipe, process))
    for worker in workers:
        worker.told()
    return workers


def text(report: dict[str, Any]) -> str:
    rate = report["rate_bits_s"] / 1e6
    lines = [
        f"{report['megabytes']} MB to {report['workers']} workers over links of {rate:g} Mbit/s; "
        f"S/B is {report['limit_s']:.3f} s"
    ]
    for found in report["versions"]:
        line = f"version {found['version']}: {found['seconds']:.3f} s, {found['limits']:.3f} x S/B"
        if "killed" in found:
            joined = found["joined_after_s"]
            line += f"; a {found['killed']} was killed, another one joined and had it {joined:.3f} s later"
        lines.append(line)
    return "\n".join(
        [*lines, f"undisturbed versions: {report['undisturbed_limits']:.3f} x S/B, the median"]
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--workers", type=int, default=8, metavar="N", help="how many at any time, at least 2 [8]"
    )
    parser.add_argument(
        "--megabytes", type=int, default=128, metavar="N", help="the size of the model [128]"
    )
    parser.add_argument(
        "--versions", type=int, default=6, metavar="N", help="how many, at least 2 [6]"
    )
    parser.add_argument(
        "--rate", type=parse_rate, default="200mbit", metavar="RATE", help="of each link [200mbit]"
    )
    parser.add_argument(
        "--kill", choices=("worker", "host"), default="worker", help="what is killed [worker]"
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
    if arguments.workers < 2 or arguments.versions < 2 or arguments.megabytes < 1:
        parser.error("it takes at least 2 workers, 2 versions and 1 megabyte")
    try:
        report = measure(arguments)
    except (BenchError, NotAvailable) as error:
        print(f"weights: {error}", file=sys.stderr)
        return 1
    print(json.dumps(report) if arguments.json else text(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
