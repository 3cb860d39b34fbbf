"""Ray's object store: a raylet on each host, and an actor there that performs the workload."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from lab import Host, Lab, registry

from ..errors import BenchError
from ..machine import output
from .base import SPLIT, Processes, System, ending

_WORKER: Final = Path(__file__).resolve().parents[1] / "peers" / "ray_worker.py"
_PORT: Final = 6379
_START_TIMEOUT_S: Final = 180
_MIB: Final = 1 << 20
# Ray's smallest store has 75 MB. Objects of a round are freed some time after it.
_ROOM_BYTES: Final = 128 * _MIB


class RayStores(System):
    """One cluster, with a raylet and a store in each host's namespace.

    A raylet needs agents and idle workers: 0.5 GB and some seconds of processor time for each host.
    """

    name = "ray"
    title = "Ray"
    setting = (
        "ray.put and ray.get by one actor on each host; a reduce gets all and adds; "
        "sends again after 10 s what has not come"
    )
    # # Ray's object store lacks these; each would be many gets by each actor.
    omits = SPLIT | {"allreduce_late"}
    most_hosts = 8

    @property
    def _programs(self) -> Path:
        return self.context.built / "venv" / "bin"

    def missing(self) -> str:
        return "" if self.version() else f"no ray for {self._programs / 'python'}: run `make bench-peers`"

    def version(self) -> str:
        return output([str(self._programs / "python"), "-c", "import importlib.metadata as m; print(m.version('ray'))"])

    @contextmanager
    def start(self, lab: Lab, socket: Path) -> Iterator[Processes]:
        address = f"{lab.hosts[0].address}:{_PORT}"
        environment = {
            **os.environ,
            # Files outside of the sessions' directories are removed with the lab too.
            "RAY_TMPDIR": str(socket.parent),
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
        }
        with self.context.log.open("ab") as log:
            common: dict[str, Any] = {
                "env": environment,
                "stdin": subprocess.DEVNULL,
                "stdout": log,
                "stderr": log,
                "cwd": "/",
            }
            # Started one after another, because a raylet that needs more than 30 s gives up, and
            # all of them share the processors. They end with the lab.
            for rank, host in enumerate(lab.hosts):
                _start(host, self._raylet(lab, rank, address), common)
            command: list[str | Path] = [
                self._programs / "python",
                _WORKER,
                address,
                socket,
                *(host.address for host in lab.hosts),
            ]
            with ending([lab.hosts[0].popen(command, **common)]) as processes:
                yield processes

    def _raylet(self, lab: Lab, rank: int, address: str) -> list[str | Path]:
        # The root of a gather holds all sources. Others hold a source, a result, and objects being
        # freed.
        copies = lab.plan.hosts + 3 if rank == 0 else 4
        arguments = {
            "node-ip-address": lab.hosts[rank].address,
            # Short, because the paths of a session's sockets begin with it.
            "temp-dir": str(registry.STATE / lab.name / f"r{rank}"),
            "object-store-memory": str(copies * self.context.most_bytes + _ROOM_BYTES),
            "num-cpus": "1",
            "include-log-monitor": "False",
        }
        if rank == 0:
            arguments |= {"port": str(_PORT), "include-dashboard": "False"}
        else:
            arguments |= {"address": address}
        words = [f"--{name}={value}" for name, value in arguments.items()]
        return [self._programs / "ray", "start", *(["--head", "--no-monitor"] if rank == 0 else []), *words]


def _start(host: Host, command: list[str | Path], options: dict[str, Any]) -> None:
    """Starts the raylet of a host, and waits until it is ready."""
    try:
        result = host.run(command, check=False, timeout=_START_TIMEOUT_S, **options)
    except subprocess.TimeoutExpired as expired:
        raise BenchError(f"ray did not start on {host.name} within {_START_TIMEOUT_S} s") from expired
    if result.returncode != 0:
        raise BenchError(f"ray did not start on {host.name}: it ended with {result.returncode}")
