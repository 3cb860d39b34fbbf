"""Ray's object store: a raylet and an actor on each host."""

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
# Ray's smallest store, and objects that are freed late.
_ROOM_BYTES: Final = 128 * _MIB


class RayStores(System):
    """Each raylet takes 0.5 GB and seconds of processor time."""

    name = "ray"
    title = "Ray"
    setting = (
        "ray.put and ray.get by one actor on each host; a reduce gets all and adds; "
        "sends again after 10 s what has not come"
    )
    # Ray's store lacks these.
    omits = SPLIT | {"allreduce_late"}
    most_hosts = 8

    @property
    def _programs(self) -> Path:
        return self.context.built / "venv" / "bin"

    def missing(self) -> str:
        return (
            ""
            if self.version()
            else f"no ray for {self._programs / 'python'}: run `make bench-peers`"
        )

    def version(self) -> str:
        return output(
            [
                str(self._programs / "python"),
                "-c",
                "import importlib.metadata as m; print(m.version('ray'))",
            ]
        )

    @contextmanager
    def start(self, lab: Lab, socket: Path) -> Iterator[Processes]:
        address = f"{lab.hosts[0].address}:{_PORT}"
        environment = {
            **os.environ,
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
            # One by one, because raylets share the processors, and give up after 30 s.
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
        copies = lab.plan.hosts + 3 if rank == 0 else 4
        arguments = {
            "node-ip-address": lab.hosts[rank].address,
            # The paths of sockets begin with it.
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
        return [
            self._programs / "ray",
            "start",
            *(["--head", "--no-monitor"] if rank == 0 else []),
            *words,
        ]


def _start(host: Host, command: list[str | Path], options: dict[str, Any]) -> None:
    try:
        result = host.run(command, check=False, timeout=_START_TIMEOUT_S, **options)
    except subprocess.TimeoutExpired as expired:
        raise BenchError(
            f"ray did not start on {host.name} within {_START_TIMEOUT_S} s"
        ) from expired
    if result.returncode != 0:
        raise BenchError(f"ray did not start on {host.name}: it ended with {result.returncode}")
