import re
import shutil
import subprocess
import tempfile
import tomllib
import unittest
from pathlib import Path

from deploy.test_files import ROOT

FILES = [
    "deploy/release.sh",
    "deploy/helm/hoplite/Chart.yaml",
    "Cargo.toml",
    "Cargo.lock",
    "CHANGELOG.md",
    "python/pyproject.toml",
]


def check(root: Path, *version: str) -> subprocess.CompletedProcess[str]:
    command = [root / "deploy/release.sh", "--check", *version]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


class Versions(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place = Path(place.name)
        self.workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]
        self.version = self.workspace["package"]["version"]
        for file in FILES + [f"{member}/Cargo.toml" for member in self.workspace["members"]]:
            (self.place / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, self.place / file)

    def replace(self, file: str, old: str, new: str) -> None:
        path = self.place / file
        text, count = re.subn(old, new, path.read_text(), count=1, flags=re.MULTILINE)
        self.assertEqual(count, 1, f"{file} has no {old}")
        path.write_text(text)

    def test_all_versions_agree(self) -> None:
        done = check(ROOT)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_a_version_that_differs_is_named(self) -> None:
        changes = {
            "Cargo.toml": [
                (
                    r'(hoplite-core = .*version = )"[^"]*"',
                    r'\1"9.9.9"',
                    "the dependency hoplite-core: 9.9.9",
                )
            ],
            "Cargo.lock": [
                (
                    r'(name = "hoplite-store"\nversion = )"[^"]*"',
                    r'\1"9.9.9"',
                    "hoplite-store: 9.9.9",
                )
            ],
            "hoplite-shm/Cargo.toml": [
                ("version.workspace = true", 'version = "9.9.9"', "hoplite-shm/Cargo.toml: 9.9.9")
            ],
            "python/pyproject.toml": [
                (r'^dynamic = \["version"\]', 'version = "9.9.9"', "python/pyproject.toml: 9.9.9")
            ],
            "deploy/helm/hoplite/Chart.yaml": [
                ("^version: .*", "version: 9.9.9", "Chart.yaml, version: 9.9.9"),
                ("^appVersion: .*", 'appVersion: "9.9.9"', "Chart.yaml, appVersion: 9.9.9"),
            ],
            "CHANGELOG.md": [(r"^## \S+", "## 9.9.9", "the newest section: 9.9.9")],
        }
        for file, cases in changes.items():
            for old, new, message in cases:
                with self.subTest(message):
                    shutil.copy(ROOT / file, self.place / file)
                    self.replace(file, old, new)
                    done = check(self.place)
                    self.assertNotEqual(done.returncode, 0)
                    self.assertIn(message, done.stdout)
                    shutil.copy(ROOT / file, self.place / file)
        self.assertEqual(check(self.place).returncode, 0, "all is as before")

    def test_a_release_needs_its_version_and_its_changes(self) -> None:
        self.replace("CHANGELOG.md", r"^## \S+", "## Unreleased")
        self.assertEqual(check(self.place).returncode, 0, "changes of the next version")
        done = check(self.place, self.version)
        self.assertIn("the newest section: Unreleased", done.stdout)
        self.replace("CHANGELOG.md", "^## Unreleased", f"## {self.version}")
        self.assertEqual(check(self.place, self.version).returncode, 0)
        done = check(self.place, "9.9.9")
        self.assertIn(f"Cargo.toml, [workspace.package]: {self.version}", done.stdout)


class Wheels(unittest.TestCase):
    def test_missing_tools_of_another_architecture_are_named(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            command = [ROOT / "deploy/wheel/build.sh", place, "vax-unknown-linux-gnu"]
            done = subprocess.run(command, capture_output=True, text=True)
            self.assertEqual(list(Path(place).iterdir()), [])
        self.assertEqual(done.returncode, 77, done.stderr)
        self.assertIn("vax-linux-gnu-gcc is missing", done.stderr)

    def test_a_wheel_that_cannot_be_tried_is_named(self) -> None:
        command = [ROOT / "deploy/wheel/foreign.sh", "hoplite-1-cp311-abi3-any.whl", "vax"]
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("not tried: hoplite-1-cp311-abi3-any.whl: qemu-vax is missing", done.stderr)
