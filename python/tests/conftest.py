"""Real stores for the tests, each on its own socket.

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
# The latest build, unless the package contains its programs.
if not (Path(hoplite.__file__).parent / "_bin").is_dir():
    os.environ.setdefault("HOPLITE_BINARIES", str(HERE.parent.parent / "target" / "debug"))
for name in ("HOPLITE_SOCKET", "HOPLITE_DIRECTORY", "HOPLITE_MEMORY"):
    os.environ.pop(name, None)
# Dask and torch leave temporary files behind.
TEMPORARY = Path(tempfile.mkdtemp(prefix="t"))
os.environ["TMPDIR"] = str(TEMPORARY)
tempfile.tempdir = None
# Disables Ray's usage reports.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
# Otherwise workers have a low priority, and take minutes to import torch on a busy machine.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112

# A background job may ignore Ctrl-C, and its children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "hoplite", deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], print_blob=True
)
settings.load_profile("hoplite")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    # Paths of sockets may have at most 107 bytes.
    if config.option.basetemp is None:
        config.option.basetemp = str(TEMPORARY / "p")


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Removes the temporary files, unless a test has failed."""
    yield
    if session.exitstatus != pytest.ExitCode.TESTS_FAILED:
        # At the very end, because multiprocessing has a folder there.
        Finalize(None, shutil.rmtree, (TEMPORARY,), {"ignore_errors": True}, exitpriority=-200)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    if exitstatus == pytest.ExitCode.TESTS_FAILED:
        terminalreporter.write_line(f"the temporary files are kept in {TEMPORARY}")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes, shared by tests that do not harm them."""
    with Cluster(tmp_path_factory.mktemp("cluster"), nodes=3, memory="512MiB") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def client(cluster: Cluster) -> Iterator[hoplite.Client]:
    with hoplite.connect(cluster.sockets[0]) as client:
        yield client


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Cluster]:
    """A node for one test, which may harm it."""
    with Cluster(tmp_path, nodes=1, memory="64MiB") as cluster:
        yield cluster


@pytest.fixture(scope="module", autouse=True)
def _no_client_is_left() -> Iterator[None]:
    """Resets the client of `hoplite.init`."""
    yield
    hoplite.shutdown()


_numbers = itertools.count()


@pytest.fixture
def fresh() -> str:
    return f"test-{next(_numbers)}/"
