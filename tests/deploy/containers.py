"""A private Docker daemon, and images that need no registry.

`unshare` isolates the daemon's network, mounts and processes, which all end with it.
"""

import os
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
import unittest
from collections.abc import Iterable
from pathlib import Path

from deploy.test_files import TOOLS

DEBIAN = TOOLS / "root"
LIBRARIES = DEBIAN / "usr/lib/x86_64-linux-gnu"
PATIENCE_S = 300.0

# Docker uses sockets and locks in /run, and a key in /etc.
START = """
mount -t tmpfs none /run && cp -a /etc "$0/etc" && mount --bind "$0/etc" /etc && ip link set lo up &&
exec dockerd --data-root "$0/data" --exec-root /run/docker --pidfile /run/docker.pid --config-file "$0/daemon.json" \\
    --host "unix://$0/socket" "$@"
"""


class Docker:
    def __init__(self) -> None:
        if os.geteuid() != 0:
            raise unittest.SkipTest("only root runs a Docker daemon")
        if not (DEBIAN / "usr/sbin/dockerd").exists():
            raise unittest.SkipTest(
                "there is no Docker: tests/deploy/install.sh could not fetch it"
            )
        self.place = Path(tempfile.mkdtemp(prefix="hoplite-docker-"))
        (self.place / "daemon.json").write_text("{}")
        programs = self.place / "bin"
        programs.mkdir()
        for name in ("iptables", "ip6tables"):
            (programs / name).symlink_to(DEBIAN / f"usr/sbin/{name}-legacy")
        self.environment = os.environ | {
            "PATH": os.pathsep.join(
                map(str, (programs, DEBIAN / "usr/sbin", DEBIAN / "usr/bin", os.environ["PATH"]))
            ),
            "LD_LIBRARY_PATH": str(LIBRARIES),
            "XTABLES_LIBDIR": str(LIBRARIES / "xtables"),
            "DOCKER_HOST": f"unix://{self.place}/socket",
            "DOCKER_CONFIG": str(self.place),
            "DOCKER_BUILDKIT": "1",
        }
        self.cgroup = self.place.name
        # overlay2 fails if /tmp is an overlay itself.
        for driver in ("overlay2", "vfs"):
            if self._start(driver):
                break
        else:
            complaint = (self.place / "log").read_text().strip().splitlines()[-1:]
            self.close()
            raise unittest.SkipTest(f"a Docker daemon cannot run here: {complaint}")
        try:
            self._run_something()
        except AssertionError as error:
            self.close()
            raise unittest.SkipTest(f"no container can run here: {error}") from None

    def _run_something(self) -> None:
        """Runs a container: some sandboxes permit only the daemon."""
        with tempfile.TemporaryDirectory() as place:
            root = Path(place) / "root"
            small_root(root, ["true"])
            self.import_root("nothing", root)
        self.run("network", "create", "trial")
        self.run("run", "--rm", "--network", "trial", "nothing", "true")
        self.run("network", "rm", "trial")

    def _start(self, driver: str) -> bool:
        flags = [f"--storage-driver={driver}", f"--cgroup-parent=/{self.cgroup}"]
        with (self.place / "log").open("wb") as log:
            self.daemon = subprocess.Popen(
                [
                    "setpriv",
                    "--pdeathsig",
                    "KILL",
                    "unshare",
                    "--net",
                    "--mount",
                    "--pid",
                    "--fork",
                    "--kill-child",
                    "--mount-proc",
                    "sh",
                    "-c",
                    START,
                ]
                + [str(self.place), *flags],
                env=self.environment,
                stdout=log,
                stderr=log,
            )
        limit = time.monotonic() + PATIENCE_S
        while self.daemon.poll() is None and time.monotonic() < limit:
            if (
                subprocess.run(
                    [DEBIAN / "usr/bin/docker", "version"],
                    env=self.environment,
                    capture_output=True,
                ).returncode
                == 0
            ):
                return True
            time.sleep(0.05)
        self._end()
        return False

    def _end(self) -> None:
        self.daemon.send_signal(signal.SIGKILL)
        self.daemon.wait()

    def close(self) -> None:
        try:
            if self.daemon.poll() is None:
                containers = self.run("ps", "--all", "--quiet").split()
                if containers:
                    self.run("rm", "--force", "--volumes", *containers)
        finally:
            self._end()
            for group in sorted(Path("/sys/fs/cgroup").glob(f"**/{self.cgroup}")):
                for directory in [
                    *sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True),
                    group,
                ]:
                    directory.rmdir()
            shutil.rmtree(self.place, ignore_errors=True)

    def _do(self, *command: object, **options: object) -> str:
        arguments = list(map(str, command))
        done = subprocess.run(
            arguments,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **options,
        )
        if done.returncode != 0:
            raise AssertionError(f"{arguments} failed: {done.stdout}")
        return done.stdout.strip()

    def run(self, *arguments: object, **options: object) -> str:
        return self._do(DEBIAN / "usr/bin/docker", *arguments, **options)

    def compose(self, directory: Path, *arguments: object) -> str:
        if not Path("/usr/bin/python3").exists():
            raise unittest.SkipTest("docker-compose needs Debian's python3")
        self.environment["PYTHONPATH"] = str(DEBIAN / "usr/lib/python3/dist-packages")
        return self._do(
            "/usr/bin/python3", DEBIAN / "usr/bin/docker-compose", *arguments, cwd=directory
        )

    def eventually(self, *arguments: object) -> str:
        """Repeats a command until it succeeds, because daemons must connect first."""
        limit = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self.run(*arguments)
            except AssertionError:
                if time.monotonic() > limit:
                    raise
                time.sleep(0.1)

    def import_root(self, name: str, root: Path, *changes: str) -> None:
        archive = self.place / "root.tar"
        with tarfile.open(archive, "w") as tar:
            tar.add(root, arcname=".")
        options = [option for change in changes for option in ("--change", change)]
        self.run("import", *options, archive, name)
        archive.unlink()


def small_root(root: Path, programs: Iterable[str | Path]) -> None:
    for directory in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / directory).mkdir(parents=True, exist_ok=True)
        (root / directory).symlink_to(f"usr/{directory}")
    for directory in ("etc", "tmp", "run", "proc", "sys", "dev"):
        (root / directory).mkdir()
    (root / "tmp").chmod(0o1777)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    for program in programs:
        path = shutil.which(program)
        assert path is not None, f"{program} is not installed"
        shutil.copy(path, root / "usr/bin" / Path(path).name)
        listed = subprocess.run(
            ["ldd", path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ).stdout
        for library in re.findall(r"(?:=> |^\s+)(/\S+) \(0x", listed, re.MULTILINE):
            copy = root / "usr" / re.sub("^/(usr/)?", "", library)
            if not copy.exists():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(library, copy)
