"""Units under a real systemd: process 1 of new namespaces, with a private /etc."""

import os
import shutil
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from deploy.test_files import BINARIES, DAEMONS, DEPLOY

SYSTEMD = Path("/usr/lib/systemd/systemd")
PATIENCE_S = 300.0
ACCOUNT = 7400

# systemd needs a control group for its services.
PREPARE = """
mount -t tmpfs none /mnt && mkdir /mnt/cgroup /mnt/bin && mount -t cgroup2 none /mnt/cgroup &&
mkdir "/mnt/cgroup/$NAME" && echo $$ >"/mnt/cgroup/$NAME/cgroup.procs" && umount /mnt/cgroup &&
exec ${NETWORK:+nsenter --net="$NETWORK"} unshare --cgroup $OWN_NETWORK --uts --ipc --pid --fork --kill-child \
  --mount-proc sh -c "$BOOT"
"""
BOOT = """
mount --bind "$BINARIES" /mnt/bin && mount -t tmpfs none /run && mount --bind "$PLACE/etc" /etc &&
mount --bind "$PLACE/units" /usr/lib/systemd/system && mount -t cgroup2 none /sys/fs/cgroup && mount -t tmpfs none /tmp &&
mount -t tmpfs none /var/tmp && ip link set lo up &&
ip address add "$ADDRESS/32" dev lo && exec env -i container=other PATH="$PATH" "$SYSTEMD" --system --unit=hoplite.target --log-target=console --show-status=false
"""
REMOVE = """
mount -t cgroup2 none /mnt || exit 0; for _ in $(seq 6000); do
  [ -d "/mnt/$NAME" ] || exit 0; find "/mnt/$NAME" -depth -type d -exec rmdir {} + 2>/dev/null; sleep 0.05
done; exit 1
"""

TARGET = "[Unit]\nDescription=of the test\nDefaultDependencies=no\n"
TOKEN = "a secret of the tests"


class Host:
    def __init__(
        self,
        test: unittest.TestCase,
        config: dict[str, str],
        address: str = "10.9.0.1",
        network_of: "Host | None" = None,
    ) -> None:
        self.config = config
        self.place = Path(tempfile.mkdtemp(prefix="hoplite-systemd-"))
        test.addCleanup(shutil.rmtree, self.place)
        self.environment = os.environ | {
            "NAME": self.place.name,
            "PLACE": str(self.place),
            "BINARIES": str(BINARIES),
            "SYSTEMD": str(SYSTEMD),
            "BOOT": BOOT,
            "REMOVE": REMOVE,
            "ADDRESS": address,
            "OWN_NETWORK": "--net",
        }
        if network_of is not None:
            network = f"/proc/{network_of.systemd}/ns/net"
            self.environment |= {"NETWORK": network, "OWN_NETWORK": ""}
        self.write_etc()
        self.write_units()
        test.addCleanup(
            subprocess.run,
            ["sh", "-c", 'unshare --mount true || exit 0; exec unshare --mount sh -c "$REMOVE"'],
            env=self.environment,
            check=True,
        )
        self.outer = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "sh", "-c", PREPARE],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        test.addCleanup(self.end)
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
        for daemon, text in self.config.items():
            (etc / f"hoplite/{daemon}.toml").write_text(text)
        token = etc / "hoplite/token"
        token.write_text(TOKEN)
        token.chmod(0o400)
        os.chown(token, ACCOUNT, ACCOUNT)
        (etc / "systemd/system.conf").write_text("[Manager]\nDefaultStandardOutput=null\n")

    def write_units(self) -> None:
        units = self.place / "units"
        units.mkdir()
        for target in ("hoplite", "basic", "sysinit", "shutdown", "network-online"):
            (units / f"{target}.target").write_text(TARGET)
        for daemon in DAEMONS:
            text = (DEPLOY / f"systemd/hoplite-{daemon}.service").read_text()
            (units / f"hoplite-{daemon}.service").write_text(text.replace("/usr/bin", "/mnt/bin"))

    def child(self) -> int:
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
        raise unittest.SkipTest(f"systemd cannot run here: {self.outer.communicate()[1].strip()}")

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
        done = subprocess.run(
            self.within(self.systemd, *command),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=2 * PATIENCE_S,
        )
        if done.returncode != 0:
            status = subprocess.run(
                self.within(self.systemd, "systemctl", "status", "hoplite-*"),
                capture_output=True,
                text=True,
            )
            raise AssertionError(f"{command}: {done.stdout}\n{status.stdout}")
        return done.stdout.strip()

    def hoplite(self, *arguments: str, timeout: str = "300s") -> str:
        return self.run_(
            "/mnt/bin/hoplite",
            "--socket",
            "/run/hoplite/store.sock",
            "--timeout",
            timeout,
            *arguments,
        )

    def of(self, daemon: str, what: str) -> str:
        return self.run_("systemctl", "show", "--value", "--property", what, f"hoplite-{daemon}")

    def end(self) -> None:
        self.outer.kill()
        self.outer.wait()
        self.outer.stderr.close()


@unittest.skipIf(os.geteuid() != 0, "only root runs a systemd")
@unittest.skipUnless(SYSTEMD.exists(), "there is no systemd")
class Systemd(unittest.TestCase):
    def test_they_start_serve_are_started_again_and_stop(self) -> None:
        host = Host(
            self,
            {
                "directory": 'listen = "127.0.0.1:7401"\n',
                "store": 'directory = ["127.0.0.1:7401"]\nmemory = "16MiB"\n',
            },
        )
        host.run_("systemctl", "start", "hoplite-directory", "hoplite-store")
        for daemon in DAEMONS:
            self.assertEqual(host.of(daemon, "SubState"), "running")
            status = host.run_("cat", f"/proc/{host.of(daemon, 'MainPID')}/status")
            self.assertIn(f"\nUid:\t{ACCOUNT}\t{ACCOUNT}\t", status)
            self.assertIn("\nCapEff:\t0000000000000000\n", status)
        self.assertEqual(
            host.run_("stat", "--format", "%U %a", "/run/hoplite/store.sock"),
            "hoplite 660",
        )
        host.hoplite("put", "x", "/etc/passwd")
        self.assertIn("hoplite:x:7400", host.hoplite("get", "x"))
        host.run_("kill", "-KILL", host.of("store", "MainPID"))
        limit = time.monotonic() + PATIENCE_S
        while (host.of("store", "NRestarts"), host.of("store", "SubState")) != (
            "1",
            "running",
        ):
            self.assertLess(time.monotonic(), limit, "it is not started again")
            time.sleep(0.1)
        host.hoplite("put", "y", "/etc/group")
        host.run_("systemctl", "stop", "hoplite-store", "hoplite-directory")
        for daemon in DAEMONS:
            self.assertEqual(
                (host.of(daemon, "SubState"), host.of(daemon, "Result")),
                ("dead", "success"),
            )
        with self.assertRaises(AssertionError):
            host.run_("test", "-e", "/run/hoplite/store.sock")

    def test_three_nodes_with_a_token_are_a_cluster_that_a_stranger_does_not_join(
        self,
    ) -> None:
        token = 'token-file = "/etc/hoplite/token"\n'

        def store(address: str) -> str:
            # The hosts of a lab share one name, and may share process numbers.
            return (
                f'listen = "{address}:7400"\nnode-id = "at-{address}"\n'
                'directory = ["10.9.0.1:7401"]\nmemory = "16MiB"\n'
            )

        first = Host(
            self,
            {
                "directory": f'listen = "10.9.0.1:7401"\n{token}',
                "store": store("10.9.0.1") + token,
            },
        )
        others = [
            Host(self, {"store": store(address) + token}, address, first)
            for address in ("10.9.0.2", "10.9.0.3")
        ]
        first.run_("systemctl", "start", "hoplite-directory", "hoplite-store")
        for host in others:
            host.run_("systemctl", "start", "hoplite-store")
        first.hoplite("put", "x", "/etc/passwd")
        for host in others:
            self.assertIn("hoplite:x:7400", host.hoplite("get", "x"))
        stranger = Host(
            self,
            {"store": store("10.9.0.4") + "insecure = true\n"},
            "10.9.0.4",
            first,
        )
        stranger.run_("systemctl", "start", "hoplite-store")
        with self.assertRaises(AssertionError):
            stranger.hoplite("get", "x", timeout="10s")
        limit = time.monotonic() + PATIENCE_S
        while stranger.of("store", "NRestarts") == "0":
            self.assertLess(time.monotonic(), limit, "it is not refused")
            time.sleep(0.1)
        others[0].hoplite("get", "x")
