"""The units under a real systemd: process 1 of namespaces of its own, with the files of this system and an /etc of its own."""

import os
import shutil
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from deploy.test_files import BINARIES, DAEMONS, DEPLOY

SYSTEMD = Path("/usr/lib/systemd/systemd")
PATIENCE_S = 30.0
ACCOUNT = 7400

# In a group of its own, below which systemd makes those of its services. /mnt is a place that every system has.
PREPARE = """
mount -t tmpfs none /mnt && mkdir /mnt/cgroup /mnt/bin && mount -t cgroup2 none /mnt/cgroup &&
mkdir "/mnt/cgroup/$NAME" && echo $$ >"/mnt/cgroup/$NAME/cgroup.procs" && umount /mnt/cgroup &&
exec unshare --cgroup --net --uts --ipc --pid --fork --kill-child --mount-proc sh -c "$BOOT"
"""
BOOT = """
mount --bind "$BINARIES" /mnt/bin && mount -t tmpfs none /run && mount --bind "$PLACE/etc" /etc &&
mount --bind "$PLACE/units" /usr/lib/systemd/system && mount -t cgroup2 none /sys/fs/cgroup && ip link set lo up &&
exec env -i container=other PATH="$PATH" "$SYSTEMD" --system --unit=hoplite.target --log-target=console --show-status=false
"""
# Again and again, until the last process is gone. Where this may not mount, nothing was made.
REMOVE = """
mount -t cgroup2 none /mnt || exit 0; for _ in $(seq 100); do
  [ -d "/mnt/$NAME" ] || exit 0; find "/mnt/$NAME" -depth -type d -exec rmdir {} + 2>/dev/null; sleep 0.05
done; exit 1
"""

TARGET = "[Unit]\nDescription=of the test\nDefaultDependencies=no\n"
CONFIG = {
    "directory": 'listen = "127.0.0.1:7401"\n',
    "store": 'directory = ["127.0.0.1:7401"]\nmemory = "16MiB"\n',
}


@unittest.skipIf(os.geteuid() != 0, "only root runs a systemd")
@unittest.skipUnless(SYSTEMD.exists(), "there is no systemd")
class Systemd(unittest.TestCase):
    def setUp(self) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="hoplite-systemd-"))
        self.addCleanup(shutil.rmtree, self.place)
        self.environment = os.environ | {
            "NAME": self.place.name,
            "PLACE": str(self.place),
            "BINARIES": str(BINARIES),
            "SYSTEMD": str(SYSTEMD),
            "BOOT": BOOT,
            "REMOVE": REMOVE,
        }
        self.write_etc()
        self.write_units()
        self.addCleanup(
            subprocess.run,
            ["sh", "-c", "unshare --mount true || exit 0; exec unshare --mount sh -c \"$REMOVE\""],
            env=self.environment,
            check=True,
        )
        # It ends with this process, however that ends, and with it all that it has started.
        command = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "unshare",
            "--mount",
            "sh",
            "-c",
            PREPARE,
        ]
        self.outer = subprocess.Popen(
            command,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(self.end)
        self.systemd = self.child()

    def write_etc(self) -> None:
        etc = self.place / "etc"
        for directory in ("systemd/system", "hoplite", "default"):
            (etc / directory).mkdir(parents=True)
        for name in ("ld.so.cache", "nsswitch.conf", "hosts"):
            if Path("/etc", name).exists():
                shutil.copy(Path("/etc", name), etc)
        (etc / "passwd").write_text(
            f"root:x:0:0::/root:/bin/sh\nhoplite:x:{ACCOUNT}:{ACCOUNT}::/nonexistent:/bin/false\n"
        )
        (etc / "group").write_text(f"root:x:0:\nhoplite:x:{ACCOUNT}:\n")
        (etc / "machine-id").write_text("0" * 31 + "1\n")
        for daemon, text in CONFIG.items():
            (etc / f"hoplite/{daemon}.toml").write_text(text)
        # There is no journal.
        (etc / "systemd/system.conf").write_text(
            "[Manager]\nDefaultStandardOutput=null\n"
        )

    def write_units(self) -> None:
        units = self.place / "units"
        units.mkdir()
        for target in ("hoplite", "basic", "sysinit", "shutdown", "network-online"):
            (units / f"{target}.target").write_text(TARGET)
        for daemon in DAEMONS:
            text = (DEPLOY / f"systemd/hoplite-{daemon}.service").read_text()
            (units / f"hoplite-{daemon}.service").write_text(
                text.replace("/usr/bin", "/mnt/bin")
            )

    def child(self) -> int:
        """The process that systemd is, when it answers; the test is skipped where it cannot."""
        limit = time.monotonic() + PATIENCE_S
        while time.monotonic() < limit and self.outer.poll() is None:
            try:
                [child] = (
                    Path(f"/proc/{self.outer.pid}/task/{self.outer.pid}/children")
                    .read_text()
                    .split()
                )
            except (ValueError, OSError):
                child = ""
            if child and subprocess.run(
                self.within(int(child), "systemctl", "is-system-running"),
                capture_output=True,
            ).stdout.strip() in (
                b"running",
                b"degraded",
            ):
                return int(child)
            time.sleep(0.05)
        self.outer.kill()
        raise unittest.SkipTest(
            f"systemd cannot run here: {self.outer.communicate()[1].strip()}"
        )

    @staticmethod
    def within(pid: int, *command: str) -> list[str]:
        return [
            "nsenter",
            "--target",
            str(pid),
            "--mount",
            "--net",
            "--pid",
            "--cgroup",
            "--ipc",
            "--uts",
            "--",
            *command,
        ]

    def run_(self, *command: str) -> str:
        """What a command writes beside the units; it must succeed."""
        done = subprocess.run(
            self.within(self.systemd, *command),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
        )
        if done.returncode != 0:
            status = subprocess.run(
                self.within(self.systemd, "systemctl", "status", "hoplite-*"),
                capture_output=True,
                text=True,
            )
            raise AssertionError(f"{command}: {done.stdout}\n{status.stdout}")
        return done.stdout.strip()

    def hoplite(self, *arguments: str) -> str:
        return self.run_(
            "/mnt/bin/hoplite",
            "--socket",
            "/run/hoplite/store.sock",
            "--timeout",
            "10s",
            *arguments,
        )

    def of(self, daemon: str, what: str) -> str:
        return self.run_(
            "systemctl", "show", "--value", "--property", what, f"hoplite-{daemon}"
        )

    def end(self) -> None:
        self.outer.kill()
        self.outer.communicate()

    def test_they_start_serve_are_started_again_and_stop(self) -> None:
        self.run_("systemctl", "start", "hoplite-directory", "hoplite-store")
        for daemon in DAEMONS:
            self.assertEqual(self.of(daemon, "SubState"), "running")
            status = self.run_("cat", f"/proc/{self.of(daemon, 'MainPID')}/status")
            self.assertIn(f"\nUid:\t{ACCOUNT}\t{ACCOUNT}\t", status)
            self.assertIn("\nCapEff:\t0000000000000000\n", status)
        self.assertEqual(
            self.run_("stat", "--format", "%U %a", "/run/hoplite/store.sock"),
            "hoplite 660",
        )
        # The hardening lets them do all of their work.
        self.hoplite("put", "x", "/etc/passwd")
        self.assertIn("hoplite:x:7400", self.hoplite("get", "x"))
        self.run_("kill", "-KILL", self.of("store", "MainPID"))
        limit = time.monotonic() + PATIENCE_S
        while (self.of("store", "NRestarts"), self.of("store", "SubState")) != (
            "1",
            "running",
        ):
            self.assertLess(time.monotonic(), limit, "it is not started again")
            time.sleep(0.1)
        self.hoplite("put", "y", "/etc/group")
        self.run_("systemctl", "stop", "hoplite-store", "hoplite-directory")
        for daemon in DAEMONS:
            self.assertEqual(
                (self.of(daemon, "SubState"), self.of(daemon, "Result")),
                ("dead", "success"),
            )
        with self.assertRaises(AssertionError):
            self.run_("test", "-e", "/run/hoplite/store.sock")
