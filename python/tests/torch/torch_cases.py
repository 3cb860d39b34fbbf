"""torch's own tests of its backends, run on this one: a program, since they read their settings when they are imported.

    python torch_cases.py WORLD_SIZE [PATTERN]

It prints what became of each, and ends with 1 if one failed.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
import unittest
from types import SimpleNamespace
from typing import Any

#: What torch's list of its own backends says, and does not hold for this one.
UNTRUE = re.compile(
    "Only MPI supports|Test requires backend|get_future is only supported|Only gloo backend supports timeouts"
    "|GLOO Batch Send Recv|Only Nccl & Gloo backend support"
)
#: What the backend has: collectives, messages, groups, DDP.
SELECTED = (
    "^test_(all_gather|all_reduce|all_to_all|barrier|batch_isend_irecv_gloo|broadcast|gather|reduce|scatter|send_recv)"
    "|^test_(get|destroy|Backend_enum_class|DistributedDataParallel(CPU|_requires_grad)|grads_same|static_graph_api_cpu)"
)
#: Those that need other devices or more ranks, and those that need what torch does not let a backend in Python do: to
#: receive from any rank. For the same reason isend and irecv are not among the selected: they ask `Work.is_completed`.
EXCLUDED = re.compile("cuda|nccl|any_source|(?<!full)_group(_|$)|_v_|object_list$|gather_object$")


def load(world_size: str, directory: str) -> type[unittest.TestCase]:
    os.environ.update(BACKEND="hoplite", WORLD_SIZE=world_size, TEMP_DIR=directory)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    # The last three are what each process of a test would take seconds to import, late.
    import torch
    import torch._dynamo
    import torch.distributed.tensor
    from torch.testing._internal import common_distributed, common_utils

    import hoplite.torch._backend  # noqa: F401
    from hoplite.torch import register

    register()
    for feature in ("plugin", "ddp", "subgroup"):
        common_distributed.DistTestCases.backend_feature[feature].add("hoplite")
    skip, skip_if = common_utils.skip_but_pass_in_sandcastle, common_utils.skip_but_pass_in_sandcastle_if
    common_utils.skip_but_pass_in_sandcastle = lambda reason: (
        (lambda case: case) if UNTRUE.search(reason) else skip(reason)
    )
    common_utils.skip_but_pass_in_sandcastle_if = lambda condition, reason: skip_if(
        condition and not UNTRUE.search(reason), reason
    )
    from torch.testing._internal.distributed import distributed_test as cases

    # Ten times a second they look whether others are there: here they do so more often.
    quick = SimpleNamespace(**{**vars(time), "sleep": lambda s: time.sleep(0.01 if s == 0.1 else s)})
    cases.time = common_distributed.time = quick

    class OnHoplite(cases.TestDistBackend, cases.DistributedTest._DistTestBase):  # type: ignore[misc,name-defined]
        def setUp(self) -> None:
            super().setUp()
            # Forked, so that not every process imports torch anew. Nothing runs here yet that a child would miss.
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    return OnHoplite


def main(world_size: str, pattern: str = SELECTED) -> int:
    with tempfile.TemporaryDirectory() as directory:
        case: Any = load(world_size, directory)
        names = [name for name in unittest.TestLoader().getTestCaseNames(case) if re.search(pattern, name)]
        suite = unittest.TestSuite(case(name) for name in names if not EXCLUDED.search(name))
        result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(suite)
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
