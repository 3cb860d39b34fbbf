"""Runs torch's `DistributedTest`, from torch's wheel, with the backend hoplite.

WORLD_SIZE=3 pytest -p exclusions suites/torch_distributed.py
"""

from __future__ import annotations

import os
import tempfile
import time
from types import SimpleNamespace

# The suite selects tests by name: all of Gloo, some of MPI.
os.environ.update(
    BACKEND="gloo", MASTER_ADDR="127.0.0.1", TEMP_DIR=tempfile.mkdtemp(prefix="torch-suite-")
)
os.environ.setdefault("WORLD_SIZE", "3")

# Once, because each fork would take seconds for these.
import torch
import torch._dynamo
import torch.distributed.tensor
from torch.testing._internal import common_distributed, common_utils

import hoplite.torch._backend  # noqa: F401
from hoplite.torch import register

_skip_if = common_utils.skip_but_pass_in_sandcastle_if
common_utils.skip_but_pass_in_sandcastle_if = lambda condition, reason: _skip_if(
    condition and not reason.startswith("Only MPI supports"), reason
)
if int(os.environ["WORLD_SIZE"]) >= 3:
    common_distributed.skip_if_small_worldsize = lambda case: case
from torch.testing._internal.distributed import distributed_test as cases  # noqa: E402

_quick = SimpleNamespace(**{**vars(time), "sleep": lambda s: time.sleep(0.01 if s == 0.1 else s)})
cases.time = common_distributed.time = _quick
register()


class _Name(str):
    """Equals "gloo", which some tests compare while they run."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return other == "gloo" or super().__eq__(other)


cases.BACKEND = _Name("hoplite")

EXCLUDED = {
    "test_ddp_logging_data_cpu": "torch reports foreign backends as `custom`",
    "test_monitored_barrier_(gloo|failure_order)$": "the test wants Gloo's message, in which present ranks blame rank 0",
}


class TestHoplite(cases.TestDistBackend, cases.DistributedTest._DistTestBase):  # type: ignore[misc,name-defined]
    def setUp(self) -> None:
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)
