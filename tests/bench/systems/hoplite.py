"""A store and a client on each host, and the directory on the last one."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab import Lab
from lab.daemons import Hoplite

from ..machine import output
from .base import Processes, System, ending

_WORKER = "hoplite-bench-worker"
# For training loops, which delete their objects at the end.
_ROOM_BYTES = 128 << 20


class HopliteStores(System):
    name = "hoplite"
    title = "Hoplite"
    setting = "one directory shard, on the last host"

    def missing(self) -> str:
        programs = ("hoplite", "hoplite-store", "hoplite-directory", _WORKER)
        missing = [
            program for program in programs if not (self.context.programs / program).is_file()
        ]
        return (
            f"no {', '.join(missing)} in {self.context.programs}: run `make bench-quick`"
            if missing
            else ""
        )

    def version(self) -> str:
        return output([str(self.context.programs / "hoplite"), "--version"]).removeprefix(
            "hoplite "
        )

    @contextmanager
    def start(self, lab: Lab, socket: Path) -> Iterator[Processes]:
        # The root of a gather holds all sources.
        most = self.context.most_bytes
        root, other = (lab.plan.hosts + 3) * most + _ROOM_BYTES, 4 * most + _ROOM_BYTES
        memory = [str(root), *[str(other)] * (lab.plan.hosts - 1)]
        # On h0, the directory would answer gathers without the network.
        shard_hosts = [lab.hosts[-1].name]
        arguments = ["--log", "warn", *self.context.store_arguments]
        with (
            Hoplite(lab, self.context.programs, memory, shard_hosts, store_arguments=arguments),
            self.context.log.open("ab") as log,
        ):
            workers = [
                host.popen(
                    [
                        self.context.programs.resolve() / _WORKER,
                        socket,
                        str(rank),
                        str(lab.plan.hosts),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
                for rank, host in enumerate(lab.hosts)
            ]
            with ending(workers):
                yield workers
