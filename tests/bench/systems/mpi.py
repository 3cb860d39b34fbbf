"""MPICH and Open MPI, as Debian packages them, over TCP."""

import subprocess
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from lab import Lab
from lab.lab import RSH

from ..machine import output
from .base import ASYNCHRONOUS, SPLIT, Processes, System, ending


class _Mpi(System):
    """The launcher runs on h0, and reaches other hosts through the lab's substitute for ssh."""

    omits = ASYNCHRONOUS
    starter: ClassVar[str]
    worker: ClassVar[str]

    @abstractmethod
    def command(self, hosts: list[str], directory: Path) -> list[str]: ...

    def missing(self) -> str:
        if not output(["which", self.starter]):
            return f"no {self.starter}: run `make bench-peers`"
        for built in (self.context.built / self.worker, Path(self.idle)):
            if not built.is_file():
                return f"no {built}: run `make bench-peers`"
        return ""

    @contextmanager
    def start(self, lab: Lab, socket: Path) -> Iterator[Processes]:
        command = [
            *self.command(lab.plan.host_names, socket.parent),
            str(self.context.built / self.worker),
            str(socket),
        ]
        with self.context.log.open("ab") as log:
            starter = lab.hosts[0].popen(
                command,
                env=lab.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
            )
        with ending([starter]) as processes:
            yield processes

    @property
    def idle(self) -> str:
        """The library that lets an MPI block instead of polling."""
        return str(self.context.built / "idle.so")


class Mpich(_Mpi):
    name = "mpich"
    title = "MPICH"
    setting = "UCX over TCP, waits instead of polling (idle.c)"
    starter = "mpiexec.mpich"
    worker = "mpich_worker"

    def version(self) -> str:
        lines = output(["mpichversion"]).splitlines()
        return next((line.split()[-1] for line in lines if line.startswith("MPICH Version")), "?")

    def command(self, hosts: list[str], directory: Path) -> list[str]:
        environment = {"LD_PRELOAD": self.idle, "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"}
        return [
            *[self.starter, "-launcher", "ssh", "-launcher-exec", str(RSH), "-iface", "eth0"],
            *["-hosts", ",".join(hosts), "-ppn", "1", "-n", str(len(hosts))],
            *[word for name, value in environment.items() for word in ("-genv", name, value)],
        ]


class OpenMpi(_Mpi):
    name = "openmpi"
    title = "Open MPI"
    setting = "TCP, waits instead of polling (idle.c), its own choice of algorithms"
    # `OpenMpiTuned`, which has pipelines, runs the late workloads.
    omits = ASYNCHRONOUS | {"broadcast_late", "reduce_late", "allreduce_late"}
    starter = "mpirun.openmpi"
    worker = "openmpi_worker"
    parameters: ClassVar[dict[str, str]] = {}

    def version(self) -> str:
        return (output([self.starter, "--version"]).splitlines() or ["?"])[0].split()[-1]

    def command(self, hosts: list[str], directory: Path) -> list[str]:
        parameters = {
            "pml": "ob1",
            "btl": "tcp,self",
            "btl_tcp_if_include": "eth0",
            "oob_tcp_if_include": "eth0",
            "plm_rsh_agent": str(RSH),
            # Otherwise hosts launch each other, outside their lab.
            "plm_rsh_no_tree_spawn": "1",
            "mpi_yield_when_idle": "1",
            # A killed Open MPI leaves files behind.
            "orte_tmpdir_base": str(directory),
            **self.parameters,
        }
        return [
            *[
                self.starter,
                "--allow-run-as-root",
                "-np",
                str(len(hosts)),
                "--map-by",
                "node",
                "--bind-to",
                "none",
            ],
            *["--host", ",".join(f"{host}:1" for host in hosts), "-x", f"LD_PRELOAD={self.idle}"],
            *[word for name, value in parameters.items() for word in ("--mca", name, value)],
        ]


class OpenMpiTuned(OpenMpi):
    """Open MPI's fastest algorithms for large objects: pipelines, and rings for allreduce."""

    name = "openmpi-tuned"
    setting = "as before, but pipelines and rings of 32 KiB segments forced by hand"
    omits = ASYNCHRONOUS | SPLIT | {"round_trip", "gather"}
    parameters: ClassVar[dict[str, str]] = {
        "coll_tuned_use_dynamic_rules": "1",
        "coll_tuned_bcast_algorithm": "3",
        "coll_tuned_bcast_algorithm_segmentsize": "32768",
        "coll_tuned_reduce_algorithm": "3",
        "coll_tuned_reduce_algorithm_segmentsize": "32768",
        "coll_tuned_allreduce_algorithm": "4",
    }
