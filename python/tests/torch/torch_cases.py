"""torch's own tests of its backends, run on this one: a program, since they read their settings when they are imported.

    python torch_cases.py WORLD_SIZE [PATTERN]

It prints what became of each, and ends with 1 if one failed.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import unittest
from typing import Any

#: Those that test what the backend has: collectives, messages, groups, DDP.
SELECTED = re.compile(sys.argv[2] if len(sys.argv) > 2 else ".*")
#: Those that need what it does not have, each with the reason.
EXCLUDED = [
    (re.compile("cuda|nccl|gpu|accelerator", re.I), "needs other devices"),
]


def load() -> type[unittest.TestCase]:
    name = os.environ.setdefault("BACKEND", "hoplite")
    os.environ.update(WORLD_SIZE=sys.argv[1])
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ["TEMP_DIR"] = tempfile.mkdtemp()
    from hoplite.torch import register

    register()
    import torch
    from torch.testing._internal import common_distributed

    if name != "hoplite":
        import torch.distributed as dist
        from hoplite.torch._backend import create
        dist.Backend.register_backend(name, create, extended_api=True, devices=["cpu"], _backend_type=dist.Backend.backend_type_map[name])
    for feature in ("plugin", "ddp", "subgroup"):
        common_distributed.DistTestCases.backend_feature[feature].add("hoplite")
    from torch.testing._internal.distributed import distributed_test as cases

    class OnHoplite(cases.TestDistBackend, cases.DistributedTest._DistTestBase):  # type: ignore[misc,name-defined]
        def setUp(self) -> None:
            super().setUp()
            # Forked, so that not every process imports torch anew. Nothing runs here yet that a child would miss.
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    return OnHoplite


def main() -> int:
    case: Any = load()
    names = [name for name in unittest.TestLoader().getTestCaseNames(case) if SELECTED.search(name)]
    suite = unittest.TestSuite(
        case(name) for name in names if not any(pattern.search(name) for pattern, _ in EXCLUDED)
    )
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(suite)
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
