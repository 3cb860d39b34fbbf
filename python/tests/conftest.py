"""Real stores for the tests. `HOPLITE_SEED` sets the seed of the random tests."""

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
from stores import LONG_GRACE, Cluster

HERE = Path(__file__).parent
# Uses the latest build, unless the package contains programs.
if not (Path(hoplite.__file__).parent / "_bin").is_dir():
    os.environ.setdefault("HOPLITE_BINARIES", str(HERE.parent.parent / "target" / "debug"))
for name in ("HOPLITE_SOCKET", "HOPLITE_DIRECTORY", "HOPLITE_MEMORY"):
    os.environ.pop(name, None)
TEMPORARY = Path(tempfile.mkdtemp(prefix="t"))
os.environ["TMPDIR"] = str(TEMPORARY)
tempfile.tempdir = None
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
# Else importing torch takes minutes on a busy machine.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112
# On a busy machine, a transfer of a tensor may take longer than Ray's default of a minute.
os.environ["RAY_rdt_fetch_fail_timeout_milliseconds"] = "300000"  # noqa: SIM112

# Background jobs ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "hoplite",
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    print_blob=True,
)
settings.load_profile("hoplite")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    # Paths of sockets may have at most 107 bytes.
    if config.option.basetemp is None:
        config.option.basetemp = str(TEMPORARY / "p")


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    yield
    if session.exitstatus != pytest.ExitCode.TESTS_FAILED:
        Finalize(None, shutil.rmtree, (TEMPORARY,), {"ignore_errors": True}, exitpriority=-200)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    if exitstatus == pytest.ExitCode.TESTS_FAILED:
        terminalreporter.write_line(f"the temporary files are kept in {TEMPORARY}")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    place = tmp_path_factory.mktemp("cluster")
    # No test kills its stores.
    with Cluster(place, nodes=3, memory="512MiB", node_grace=LONG_GRACE) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def client(cluster: Cluster) -> Iterator[hoplite.Client]:
    with hoplite.connect(cluster.sockets[0]) as client:
        yield client


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, nodes=1, memory="64MiB") as cluster:
        yield cluster


@pytest.fixture(scope="module", autouse=True)
def _no_client_is_left() -> Iterator[None]:
    yield
    hoplite.shutdown()


_numbers = itertools.count()


@pytest.fixture
def fresh() -> str:
    return f"test-{next(_numbers)}/"
