"""The units, and the Debian package: made, installed into a bare directory, and removed again."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

from deploy.test_files import BINARIES, DAEMONS, DEPLOY, needed


def run(*command: str | Path, **options: object) -> str:
    """What a command writes; it must succeed."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode != 0:
        raise AssertionError(f"{command} failed: {done.stdout}")
    return done.stdout


class Units(unittest.TestCase):
    def test_systemd_accepts_them(self) -> None:
        systemd = needed("systemd-analyze", "systemd")
        with tempfile.TemporaryDirectory() as place:
            for daemon in DAEMONS:
                text = (DEPLOY / f"systemd/hoplite-{daemon}.service").read_text()
                unit = Path(place) / f"hoplite-{daemon}.service"
                unit.write_text(text.replace("/usr/bin", str(BINARIES)))
            complaints = run(systemd, "verify", *sorted(Path(place).iterdir()))
            ours = [line for line in complaints.splitlines() if "hoplite" in line]
            self.assertEqual(ours, [])

    def test_they_expose_little(self) -> None:
        systemd = needed("systemd-analyze", "systemd")
        for daemon in DAEMONS:
            unit = DEPLOY / f"systemd/hoplite-{daemon}.service"
            # Of 100; 20 is "OK" in the words of systemd, and most daemons of a distribution have 96.
            run(systemd, "security", "--offline=true", "--threshold=25", unit)


class Package(unittest.TestCase):
    place: tempfile.TemporaryDirectory[str]
    package: Path

    @classmethod
    def setUpClass(cls) -> None:
        needed("dpkg-deb", "dpkg")
        needed("objdump", "binutils")
        cls.place = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.place.cleanup)
        # Unoptimised programs are large, and it does not matter how well they are compressed.
        quickly = {**os.environ, "DPKG_DEB_COMPRESSOR_TYPE": "gzip", "DPKG_DEB_COMPRESSOR_LEVEL": "1"}
        cls.package = Path(run(DEPLOY / "debian/build.sh", BINARIES, cls.place.name, env=quickly).strip())

    def test_it_says_what_it_is(self) -> None:
        control = run("dpkg-deb", "--field", self.package)
        self.assertIn("Package: hoplite\n", control)
        self.assertRegex(control, r"Depends: libc6 \(>= 2\.\d+\), libgcc-s1")
        listed = run("dpkg-deb", "--contents", self.package)
        for line in listed.splitlines():
            self.assertIn("root/root", line, "everything belongs to root")

    def test_it_is_installed_and_purged(self) -> None:
        if os.geteuid() != 0:
            raise unittest.SkipTest("only root installs packages")
        root = Path(self.place.name) / "root"
        for directory in ["var/lib/dpkg/updates", "var/lib/dpkg/info", "etc", "run"]:
            (root / directory).mkdir(parents=True)
        (root / "var/lib/dpkg/status").touch()
        (root / "var/lib/dpkg/available").touch()
        (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
        (root / "etc/group").write_text("root:x:0:\n")
        # The scripts run on this system and are told where the root is.
        dpkg = ["dpkg", f"--root={root}", "--force-script-chrootless", "--force-depends"]
        run(*dpkg, "--install", self.package)
        for daemon in DAEMONS:
            version = run(root / f"usr/bin/hoplite-{daemon}", "--version")
            self.assertIn(f"hoplite-{daemon} ", version)
            self.assertTrue((root / f"usr/lib/systemd/system/hoplite-{daemon}.service").exists())
            self.assertTrue((root / f"etc/hoplite/{daemon}.toml").exists())
        if "systemd-sysusers" in (DEPLOY / "debian/postinst").read_text():
            self.assertIn("\nhoplite:", (root / "etc/passwd").read_text())
        self.assertEqual(run(root / "usr/bin/hoplite", "--version").split()[0], "hoplite")
        changed = root / "etc/hoplite/store.toml"
        changed.write_text('memory = "1GiB"\n')
        run(*dpkg, "--remove", "hoplite")
        self.assertFalse((root / "usr/bin/hoplite").exists())
        self.assertEqual(changed.read_text(), 'memory = "1GiB"\n', "what the operator has written stays")
        run(*dpkg, "--purge", "hoplite")
        self.assertFalse(changed.exists())
