"""A pytest plugin that runs Ray's tests of CPU collective groups with the backend hoplite.

    RAY_CHECKOUT=~/ray pytest --noconftest -p exclusions -p ray_collective \\
        ~/ray/python/ray/util/collective/tests/single_node_cpu_tests

With `WRITABLE=1`, the actors get writable copies of their array arguments.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import ray.util.collective
from ray.util.collective.types import Backend

import hoplite.ray

EXCLUDED = {
    "test_destroy_group": "the second group has the default backend, NCCL",
    "test_two_groups_in_one_cluster|test_failure_when_initializing": "it is about the inside of the Gloo backend",
}
SECONDS_TO_LEAVE = 10

_COLLECTIVE = Path(os.environ["RAY_CHECKOUT"]) / "python" / "ray" / "util" / "collective"
ray.util.collective.__path__.append(str(_COLLECTIVE))
hoplite.ray.register()
Backend.GLOO = "hoplite"
_cases = importlib.import_module("ray.util.collective.tests.cpu_util")
ray.cloudpickle.register_pickle_by_value(_cases)

if "WRITABLE" in os.environ:
    _worker = _cases.Worker.__ray_metadata__.modified_class
    _worker._keep = _worker.set_buffer
    _worker.set_buffer = lambda self, data: self._keep(
        data.copy() if isinstance(data, np.ndarray) else data
    )


class _Workers:
    """Workers that tests reuse, because importing torch takes longest."""

    def __init__(self, make: Any) -> None:
        self._make = make
        self._free: list[Any] = []
        self._used: list[Any] = []

    def remote(self) -> Any:
        self._used.append(self._free.pop() if self._free else self._make.remote())
        return self._used[-1]

    def take_back(self) -> None:
        for actor in self._used:
            try:
                ray.get(actor.__ray_call__.remote(_leave_all), timeout=SECONDS_TO_LEAVE)
                self._free.append(actor)
            except ray.exceptions.RayError:
                ray.kill(actor)
        self._used.clear()

    def clear(self) -> None:
        self._free.clear()


def _leave_all(_actor: object) -> None:
    from ray.util.collective import collective

    for name in list(collective._group_mgr._name_group_map):
        collective.destroy_collective_group(name)


_workers = _cases.Worker = _Workers(_cases.Worker)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.excinfo is not None and "this one is read-only: pass a copy" in str(call.excinfo.value):
        report.outcome = "skipped"
        reason = "excluded: Ray passes a read-only array, to which Gloo writes, and Hoplite refuses"
        report.longrepr = (str(item.path), None, reason)
    return report


@pytest.fixture(scope="session")
def _ray() -> Iterator[None]:
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="disabled")
    hook = {"worker_process_setup_hook": "hoplite.ray.register"}
    ray.init(num_cpus=8, runtime_env=hook, include_dashboard=False, log_to_driver=False)
    hoplite.ray.start_on_all_nodes(memory="256MiB")
    yield
    _workers.clear()
    hoplite.ray.stop_on_all_nodes()
    ray.shutdown()


@pytest.fixture
def ray_start_single_node(_ray: None) -> Iterator[None]:
    yield
    _workers.take_back()
