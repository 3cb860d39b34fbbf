"""The files of deploy/ use existing flags and metrics, and their readers accept them."""

import json
import re
import shutil
import subprocess
import tempfile
import tomllib
import unittest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
BINARIES = ROOT / "target/debug"
TOOLS = ROOT / "target/deploy-tools"
DAEMONS = ["store", "directory"]


def flags(daemon: str) -> set[str]:
    command = [BINARIES / f"hoplite-{daemon}", "--help"]
    text = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    return set(re.findall(r"^\s+(?:-\w, )?--([a-z-]+)", text, re.MULTILINE))


def needed(program: str, package: str) -> str:
    path = shutil.which(program) or shutil.which(program, path=TOOLS / "root/usr/bin")
    if path is None:
        raise unittest.SkipTest(f"{program} is not installed (Debian: {package})")
    return path


def yaml_of(path: Path) -> list[Any]:
    try:
        import yaml
    except ImportError:
        raise unittest.SkipTest("PyYAML is not installed") from None
    return list(yaml.safe_load_all(path.read_text()))


class Flags(unittest.TestCase):
    def check(self, daemon: str, named: set[str], where: str) -> None:
        self.assertTrue(named, where)
        self.assertLessEqual(
            named, flags(daemon), f"{where} names flags that hoplite-{daemon} does not have"
        )

    def test_units(self) -> None:
        for daemon in DAEMONS:
            text = (DEPLOY / f"systemd/hoplite-{daemon}.service").read_text()
            start = re.search(r"^ExecStart=(.*)$", text, re.MULTILINE)
            assert start is not None
            self.check(daemon, set(re.findall(r"--([a-z-]+)", start[1])), "the unit")

    def test_settings_are_accepted_commented_out_or_not(self) -> None:
        for daemon in DAEMONS:
            text = (DEPLOY / f"config/{daemon}.toml").read_text()
            self.assertEqual(tomllib.loads(text), {}, "as it is, nothing is set")
            settings = tomllib.loads(re.sub(r"^#(?=[a-z-]+ = )", "", text, flags=re.MULTILINE))
            self.check(daemon, set(settings), f"{daemon}.toml")

    def test_compose(self) -> None:
        [compose] = yaml_of(DEPLOY / "docker/compose.yaml")
        services = compose["services"]
        names = sorted(services)
        self.assertEqual(
            names,
            [
                "directory-0",
                "directory-1",
                "grafana",
                "prometheus",
                "store-0",
                "store-1",
                "store-2",
            ],
        )
        for name, service in services.items():
            daemon = name.split("-")[0]
            if daemon in DAEMONS:
                program, *arguments = service["command"]
                self.assertEqual(program, f"hoplite-{daemon}")
                self.check(
                    daemon, {re.match("--([a-z-]+)", argument)[1] for argument in arguments}, name
                )
            for volume in service.get("volumes", []):
                source = DEPLOY / "docker" / volume.split(":")[0]
                self.assertTrue(source.exists(), f"{source} is mounted")

    def test_chart(self) -> None:
        for daemon in DAEMONS:
            text = (DEPLOY / f"helm/hoplite/templates/{daemon}.yaml").read_text()
            text += (DEPLOY / "helm/hoplite/templates/_helpers.tpl").read_text()
            self.check(
                daemon, set(re.findall(r"^\s*- --([a-z-]+)", text, re.MULTILINE)), "the chart"
            )

    def test_ray_cluster(self) -> None:
        [cluster] = yaml_of(DEPLOY / "kuberay/raycluster.yaml")
        group = cluster["spec"]["workerGroupSpecs"][0]["template"]["spec"]
        [values] = yaml_of(DEPLOY / "helm/hoplite/values.yaml")
        self.assertEqual(group["volumes"][0]["hostPath"]["path"], values["store"]["hostPath"])
        self.assertEqual(group["securityContext"]["supplementalGroups"], [7400])


class Monitoring(unittest.TestCase):
    def exported(self) -> set[str]:
        table = (ROOT / "docs/reference/metrics.md").read_text()
        names = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
        self.assertGreater(len(names), 30)
        return names

    def check(self, expression: str) -> None:
        for name in re.findall(r"\b(?:hoplite|process)_\w+", expression):
            family = re.sub("_(bucket|sum|count)$", "", name)
            self.assertTrue({name, family} & self.exported(), f"{name} in {expression}")

    def test_dashboard(self) -> None:
        dashboard = json.loads((DEPLOY / "monitoring/dashboard.json").read_text())
        expressions = [
            target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])
        ]
        self.assertGreater(len(expressions), 20)
        for expression in expressions:
            self.check(expression)
        identifiers = [panel["id"] for panel in dashboard["panels"]]
        self.assertEqual(len(identifiers), len(set(identifiers)))

    def test_alerts(self) -> None:
        [rules] = yaml_of(DEPLOY / "monitoring/alerts.yml")
        for rule in rules["groups"][0]["rules"]:
            self.check(rule["expr"])

    def test_promtool_accepts_the_rules_and_they_fire(self) -> None:
        promtool = needed("promtool", "prometheus")
        for command in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts.test.yml"]):
            done = subprocess.run(
                [promtool, *command],
                cwd=DEPLOY / "monitoring",
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            self.assertEqual(done.returncode, 0, done.stdout)

    def test_promtool_accepts_the_queries_of_the_dashboard(self) -> None:
        promtool = needed("promtool", "prometheus")
        dashboard = json.loads((DEPLOY / "monitoring/dashboard.json").read_text())
        expressions = [
            target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])
        ]
        expressions = [
            text.replace("$__rate_interval", "1m").replace("$instance", ".*")
            for text in expressions
        ]
        rules = [{"record": "x:y", "expr": expression} for expression in expressions]
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / "rules.yml"
            path.write_text(
                json.dumps(
                    {"groups": [{"name": f"g{n}", "rules": [rule]} for n, rule in enumerate(rules)]}
                )
            )
            done = subprocess.run(
                [promtool, "check", "rules", "--lint=none", path],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            self.assertEqual(done.returncode, 0, done.stdout)

    def test_promtool_accepts_the_configuration_of_compose(self) -> None:
        promtool = needed("promtool", "prometheus")
        with tempfile.TemporaryDirectory() as place:
            shutil.copy(DEPLOY / "docker/prometheus.yml", place)
            shutil.copy(DEPLOY / "monitoring/alerts.yml", place)
            done = subprocess.run(
                [promtool, "check", "config", Path(place) / "prometheus.yml"],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            self.assertEqual(done.returncode, 0, done.stdout)
