"""Units of systemd, and the Debian package in an empty root directory."""

import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

from deploy.test_files import BINARIES, DAEMONS, DEPLOY, ROOT, needed


def run(*command: str | Path, **options: object) -> str:
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
    )
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
            # systemd calls an exposure of 20 of 100 "OK"; most daemons have 96.
            run(systemd, "security", "--offline=true", "--threshold=25", unit)


class Scripts(unittest.TestCase):
    def perform(self, script: str, *arguments: str, active: str = "") -> tuple[str, list[str]]:
        """Runs a package's script as if the unit `active` were running. Returns its calls."""
        with tempfile.TemporaryDirectory() as name:
            place = Path(name)
            (place / "running").mkdir()
            calls = place / "calls"
            calls.touch()
            for program in (
                "systemctl",
                "systemd-sysusers",
                "systemd-tmpfiles",
                "deb-systemd-invoke",
            ):
                stub = place / program
                last = f'case "$*" in *is-active*) [ -n "{active}" ] && case "$*" in *{active}*) exit 0;; esac; exit 3;; esac'
                stub.write_text(f'#!/bin/sh\necho "{program} $*" >> {calls}\n{last}\n')
                stub.chmod(0o755)
            text = (
                (DEPLOY / "debian" / script)
                .read_text()
                .replace("/run/systemd/system", str(place / "running"))
            )
            environment = {"PATH": f"{place}:{os.environ['PATH']}"}
            said = run("sh", "-c", text, script, *arguments, env=environment)
            return said, calls.read_text().splitlines()

    def test_an_upgrade_leaves_daemons_that_run_alone(self) -> None:
        said, calls = self.perform("postinst", "configure", "0.0.9", active="hoplite-store")
        self.assertIn("systemctl daemon-reload", calls)
        asked = ("daemon-reload", "is-active")
        others = [
            call
            for call in calls
            if call.startswith("systemctl") and not any(a in call for a in asked)
        ]
        self.assertEqual(others, [], "the objects of a store are in memory")
        self.assertIn("hoplite-store still runs as version 0.0.9", said)
        self.assertIn("systemctl restart hoplite-store", said)
        self.assertNotIn("hoplite-directory", said, "it does not run")
        for script, arguments in {
            "prerm": ("upgrade", "0.1.0"),
            "postrm": ("upgrade", "0.1.0"),
        }.items():
            _, calls = self.perform(script, *arguments, active="hoplite-store")
            self.assertEqual([call for call in calls if "daemon-reload" not in call], [])

    def test_a_first_installation_starts_nothing_and_a_removal_ends_all(self) -> None:
        said, calls = self.perform("postinst", "configure", "")
        self.assertEqual(said, "")
        self.assertEqual(
            [call for call in calls if call.startswith("systemctl")], ["systemctl daemon-reload"]
        )
        _, calls = self.perform("prerm", "remove")
        self.assertEqual(
            calls,
            ["systemctl --no-reload disable --now hoplite-store.service hoplite-directory.service"],
        )


class Package(unittest.TestCase):
    place: tempfile.TemporaryDirectory[str]
    package: Path

    @classmethod
    def setUpClass(cls) -> None:
        needed("dpkg-deb", "dpkg")
        needed("objdump", "binutils")
        cls.place = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.place.cleanup)
        quickly = {
            **os.environ,
            "DPKG_DEB_COMPRESSOR_TYPE": "gzip",
            "DPKG_DEB_COMPRESSOR_LEVEL": "1",
        }
        cls.package = Path(
            run(DEPLOY / "debian/build.sh", BINARIES, cls.place.name, env=quickly).strip()
        )

    def test_it_says_what_it_is(self) -> None:
        control = run("dpkg-deb", "--field", self.package)
        self.assertIn("Package: hoplite\n", control)
        self.assertRegex(control, r"Depends: libc6 \(>= 2\.\d+\), libgcc-s1")
        listed = run("dpkg-deb", "--contents", self.package)
        for line in listed.splitlines():
            self.assertIn("root/root", line, "everything belongs to root")

    def contents(self) -> set[str]:
        lines = run("dpkg-deb", "--contents", self.package).splitlines()
        return {
            line.split(maxsplit=5)[5].removeprefix(".") for line in lines if line.startswith("-")
        }

    def test_it_has_all_documents(self) -> None:
        contents = self.contents()
        pages = [path.relative_to(ROOT) for path in ROOT.glob("docs/**/*.md")]
        self.assertGreater(len(pages), 10)
        for page in ["README.md", "CHANGELOG.md", "SECURITY.md", *pages]:
            self.assertIn(f"/usr/share/doc/hoplite/{page}", contents)
        for daemon in DAEMONS:
            unit = (DEPLOY / f"systemd/hoplite-{daemon}.service").read_text()
            [page] = re.findall(r"^Documentation=file:(.*)$", unit, re.MULTILINE)
            self.assertIn(page, contents, "the unit names it")
        large = [path for path in ROOT.glob("docs/**/*.png") if path.stat().st_size > 100 * 1024]
        self.assertFalse(
            {f"/usr/share/doc/hoplite/{path.relative_to(ROOT)}" for path in large} & contents
        )

    def test_it_has_the_manual_pages_and_completions_that_the_command_line_makes(self) -> None:
        contents = self.contents()
        for file in [
            "man/man1/hoplite.1.gz",
            "man/man1/hoplite-put.1.gz",
            "bash-completion/completions/hoplite",
            "zsh/vendor-completions/_hoplite",
            "fish/vendor_completions.d/hoplite.fish",
        ]:
            self.assertIn(f"/usr/share/{file}", contents)

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
        tool = (root / "etc/needrestart/conf.d/hoplite.conf").read_text()
        self.assertIn(
            "override_rc}->{qr(^hoplite-)} = 0;", tool, "nor does needrestart, after other upgrades"
        )
        changed = root / "etc/hoplite/store.toml"
        changed.write_text('memory = "1GiB"\n')
        run(*dpkg, "--remove", "hoplite")
        self.assertFalse((root / "usr/bin/hoplite").exists())
        self.assertEqual(
            changed.read_text(), 'memory = "1GiB"\n', "what the operator has written stays"
        )
        run(*dpkg, "--purge", "hoplite")
        self.assertFalse(changed.exists())
