
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from lab import Lab

from ..machine import output
from .base import ASYNCHRONOUS, Processes, System, ending

_WORKER: Final = Path(__file__).resolve().parents[1] / "peers" / "gloo_worker.py"
_PORT: Final = 29500


class Gloo(System):
    name = "gloo"
    title = "Gloo"
    setting = "torch.distributed over TCP"
    omits = ASYNCHRONOUS

    @property
    def _python(self) -> Path:
        return self.context.built / "venv" / "bin" / "python"

    def missing(self) -> str:
        return "" if self.version() else f"no torch for {self._python}: run `make bench-peers`"

    def version(self) -> str:
        found = output(
            [str(self._python), "-c", "import importlib.metadata as m; print(m.version('torch'))"]
        )
        return f"torch {found}" if found else ""

    @contextmanager
    def start(self, lab: Lab, socket: Path) -> Iterator[Processes]:
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
        address = f"{lab.hosts[0].address}:{_PORT}"
        with self.context.log.open("ab") as log:
            workers = [
                host.popen(
                    [self._python, _WORKER, socket, str(rank), str(lab.plan.hosts), address],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
                for rank, host in enumerate(lab.hosts)
            ]
        with ending(workers):
            yield workers
