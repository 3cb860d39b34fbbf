"""Real stores on sockets of their own, for the tests.

`HOPLITE_SEED` sets the seed of the random tests, which each failure prints.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from multiprocessing.util import Finalize
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import hoplite
from stores import Cluster

HERE = Path(__file__).parent
# What was built last, unless somebody says otherwise, or the package has its programs with it.
if not (Path(hoplite.__file__).parent / "_bin").is_dir():
    os.environ.setdefault("HOPLITE_BINARIES", str(HERE.parent.parent / "target" / "debug"))
# No test may find, or leave, a store of this machine.
for name in ("HOPLITE_SOCKET", "HOPLITE_DIRECTORY", "HOPLITE_MEMORY"):
    os.environ.pop(name, None)
# For the temporary files of the tests and of all that they start: Dask and torch leave some behind.
TEMPORARY = Path(tempfile.mkdtemp(prefix="t"))
os.environ["TMPDIR"] = str(TEMPORARY)
tempfile.tempdir = None
# Ray is to tell nobody of the tests, and to ask nobody outside of this machine.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
# Its workers have a low priority otherwise: on a machine that is busy they need minutes to import torch.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112

# Whoever starts the tests in the background may ignore Ctrl-C, and all that they start would inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "hoplite", deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], print_blob=True
)
settings.load_profile("hoplite")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    # There are sockets in the folders of tests, and the path of one has at most 107 bytes.
    if config.option.basetemp is None:
        config.option.basetemp = str(TEMPORARY / "p")


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Removes the temporary files, unless a test has failed: then they tell why."""
    yield
    if session.exitstatus != pytest.ExitCode.TESTS_FAILED:
        # At the very end: multiprocessing has a folder of its own there, which it removes before.
        Finalize(None, shutil.rmtree, (TEMPORARY,), {"ignore_errors": True}, exitpriority=-200)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    if exitstatus == pytest.ExitCode.TESTS_FAILED:
        terminalreporter.write_line(f"the temporary files are kept in {TEMPORARY}")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes, shared by all tests that harm none of them."""
    with Cluster(tmp_path_factory.mktemp("cluster"), nodes=3, memory="512MiB") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def client(cluster: Cluster) -> Iterator[hoplite.Client]:
    with hoplite.connect(cluster.sockets[0]) as client:
        yield client


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Cluster]:
    """A node for one test, which may do to it what it likes."""
    with Cluster(tmp_path, nodes=1, memory="64MiB") as cluster:
        yield cluster


@pytest.fixture(scope="module", autouse=True)
def _no_client_is_left() -> Iterator[None]:
    """The client of this process, of `hoplite.init`, is that of one module's store."""
    yield
    hoplite.shutdown()


_numbers = itertools.count()


@pytest.fixture
def fresh() -> str:
    """The beginning of ids that no other test uses."""
    return f"test-{next(_numbers)}/"
