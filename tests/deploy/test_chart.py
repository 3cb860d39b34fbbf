"""The chart: what Helm makes of it is valid for Kubernetes. That its pods run is shown in `test_containers`."""

import subprocess
import unittest
from typing import Any

from deploy.test_files import DEPLOY, TOOLS

CHART = DEPLOY / "helm/hoplite"
# The oldest one that Chart.yaml allows, and the newest that the schemas know.
VERSIONS = ["1.25", "1.37"]
CHOICES = {
    "a token": ["auth.tokenSecret=hoplite-token"],
    "certificates": ["auth.tlsSecret=hoplite-tls"],
    "nobody": ["auth.insecure=true"],
    "all there is": [
        "auth.tokenSecret=hoplite-token",
        "auth.tlsSecret=hoplite-tls",
        "metrics.podMonitor=true",
        "store.hostNetwork=true",
        "store.nodeSelector.gpu=yes",
        "store.tolerations[0].operator=Exists",
        "directory.tolerations[0].operator=Exists",
        "directory.extraArgs[0]=--log-format=text",
        "directory.replicas=3",
        "imagePullSecrets[0].name=registry",
    ],
    "no policy": ["auth.tokenSecret=hoplite-token", "networkPolicy.enabled=false"],
}


def helm(*arguments: object) -> subprocess.CompletedProcess[str]:
    program = TOOLS / "helm"
    if not program.exists():
        raise unittest.SkipTest("there is no Helm: tests/deploy/install.sh could not fetch it")
    return subprocess.run([program, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def objects(values: list[str]) -> list[dict[str, Any]]:
    """The objects that the chart makes for a release x in the namespace y."""
    done = helm("template", "x", CHART, "--namespace", "y", *(f"--set={value}" for value in values))
    assert done.returncode == 0, done.stderr
    try:
        import yaml
    except ImportError:
        raise unittest.SkipTest("PyYAML is not installed") from None
    return [item for item in yaml.safe_load_all(done.stdout) if item is not None]


def of_kind(made: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    [found] = [item for item in made if item["kind"] == kind]
    return found


class Chart(unittest.TestCase):
    def test_helm_finds_nothing_wrong(self) -> None:
        done = helm("lint", "--strict", CHART, "--set=auth.tokenSecret=t")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_somebody_must_be_let_in_knowingly(self) -> None:
        done = helm("template", "x", CHART)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("choose who may connect", done.stderr)

    def test_kubernetes_understands_its_objects(self) -> None:
        try:
            import kubernetes_validate
        except ImportError:
            raise unittest.SkipTest("there are no schemas of Kubernetes: tests/deploy/install.sh could not fetch them") from None
        for name, values in CHOICES.items():
            made = objects(values)
            kinds = {item["kind"] for item in made}
            self.assertLessEqual({"Service", "StatefulSet", "DaemonSet", "PodDisruptionBudget"}, kinds)
            self.assertEqual("NetworkPolicy" in kinds, name != "no policy")
            for item in made:
                # Kinds of operators are not of Kubernetes.
                if item["apiVersion"].startswith("monitoring.coreos.com/"):
                    continue
                for version in VERSIONS:
                    with self.subTest(name, kind=item["kind"], version=version):
                        kubernetes_validate.validate(item, version, strict=True)

    def test_the_validator_refuses_what_is_wrong(self) -> None:
        try:
            import kubernetes_validate
        except ImportError:
            raise unittest.SkipTest("there are no schemas of Kubernetes: tests/deploy/install.sh could not fetch them") from None
        store = of_kind(objects(["auth.insecure=true"]), "DaemonSet")
        store["spec"]["template"]["spec"]["hostNetwrok"] = True
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(store, VERSIONS[-1], strict=True)
