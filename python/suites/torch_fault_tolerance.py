"""Runs torch's `test_c10d_fault_tolerance.py` with the backend hoplite. `TORCH_CHECKOUT` is torch's
repository.

TORCH_CHECKOUT=~/pytorch pytest -p exclusions suites/torch_fault_tolerance.py
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import torch

from hoplite.torch import register

sys.path.insert(0, str(Path(os.environ["TORCH_CHECKOUT"]) / "test" / "distributed"))
suite = importlib.import_module("test_c10d_fault_tolerance")
register()

EXCLUDED = {
    "test_reconfigure_after_timeout": "the test is about a backend that revokes a group of accelerators on its own",
}


class TestHoplite(suite._make_fault_tolerance_test_class("hoplite", "cpu")):  # type: ignore[misc]
    def _spawn_processes(self) -> None:
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


class TestContract(suite.ReconfigureContractTest):  # type: ignore[misc,name-defined]
    pass
