"""A cluster for a run: stores on this machine, or Ray."""

from __future__ import annotations

import argparse
import ctypes
import logging
import math
import os
import shutil
import signal
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

#: Many workers share the cores.
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
#: Memory beside the objects; Ray needs at least 75 MiB.
SPARE_BYTES = 80 << 20
#: For prctl(2): a signal when the parent dies.
_PR_SET_PDEATHSIG = 1
_EXAMPLES = Path(__file__).parent.parent


class NoCluster(Exception):
    """There is no cluster to run on."""


def store_bytes(args: argparse.Namespace, object_bytes: int) -> int:
    """Returns a store's memory. Each worker may use another version of the weights."""
    versions: int = 2 * args.workers + 8
    return versions * object_bytes + SPARE_BYTES


@contextmanager
def stores(count: int, memory_bytes: int) -> Iterator[list[str]]:
    """Yields the sockets of stores, which connect over TCP."""
    with (
        tempfile.TemporaryDirectory(prefix="hoplite-example-") as directory,
        ExitStack() as cleanup,
    ):
        log = cleanup.enter_context(open(Path(directory) / "log", "w+"))
        command = [
            _program(),
            "up",
            "--nodes",
            str(count),
            "--memory",
            str(memory_bytes),
            "--dir",
            directory,
        ]
        cleanup.enter_context(_running(command, log))
        yield [str(Path(directory) / f"node-{node}.sock") for node in range(count)]


@contextmanager
def _running(command: list[str], log: IO[str]) -> Iterator[None]:
    libc = ctypes.CDLL(None)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        # Ctrl-C reaches only this program, which stops the stores.
        start_new_session=True,
        preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
    )
    assert process.stdout is not None
    with process:
        try:
            if process.stdout.readline() != "ready\n":
                log.seek(0)
                raise NoCluster(f"the stores did not start: {log.read().strip()}")
            yield
        finally:
            process.terminate()


def _program() -> str:
    found = shutil.which("hoplite", path=sysconfig.get_path("scripts")) or shutil.which("hoplite")
    if found is None:
        raise NoCluster("the program `hoplite` is not there: install the package with pip")
    return found


@contextmanager
def ray_running(args: argparse.Namespace, memory_bytes: int) -> Iterator[Any]:
    import ray

    with ExitStack() as cleanup:
        address = args.ray_address
        if address in (None, "local"):
            address = cleanup.enter_context(_ray_nodes(args, memory_bytes))
        runtime_env = {"working_dir": str(_EXAMPLES), "excludes": ["*.png"], "env_vars": ONE_THREAD}
        if args.backend == "hoplite":
            runtime_env["worker_process_setup_hook"] = "hoplite.ray.register"
        ray.init(
            address=address,
            runtime_env=runtime_env,
            log_to_driver=False,
            logging_level=logging.WARNING,
        )
        cleanup.callback(ray.shutdown)
        all_nodes: Any = ray.nodes
        args.nodes = sum(node["Alive"] for node in all_nodes())
        yield ray


@contextmanager
def _ray_nodes(args: argparse.Namespace, memory_bytes: int) -> Iterator[str]:
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as directory:
        # Keeps another cluster of this machine as the default.
        os.environ["RAY_TMPDIR"] = directory
        others = args.nodes - 1
        cpus = 0 if others else args.workers
        common: dict[str, Any] = {
            "object_store_memory": memory_bytes,
            "include_dashboard": False,
            "include_log_monitor": False,
            "no_monitor": True,
        }
        cluster: Any = Cluster(initialize_head=True, head_node_args={**common, "num_cpus": cpus})
        try:
            for _ in range(others):
                cluster.add_node(**common, num_cpus=math.ceil(args.workers / others))
            cluster.wait_for_nodes()
            yield str(cluster.address)
        finally:
            cluster.shutdown()


@contextmanager
def stores_on_ray(args: argparse.Namespace, memory_bytes: int) -> Iterator[None]:
    import hoplite.ray

    hoplite.ray.register()
    if args.ray_address == "local":
        hoplite.ray.start_on_all_nodes(memory=memory_bytes, store_options=["--no-prefault"])
        try:
            yield
        finally:
            hoplite.ray.stop_on_all_nodes()
    else:
        hoplite.ray.start_on_all_nodes(insecure=args.insecure)
        yield
