"""The Helm chart: its objects are valid, secure, and follow its values."""

import json
import os
import re
import subprocess
import tempfile
import tomllib
import unittest
from pathlib import Path
from typing import Any

from deploy.api_server import api_server
from deploy.pod_security import violations
from deploy.test_files import DEPLOY, ROOT, TOOLS, needed

CHART = DEPLOY / "helm/hoplite"
# The oldest permitted Kubernetes, and the newest with known schemas.
VERSIONS = ["1.25", "1.37"]
CHOICES = {
    "a token": ["auth.tokenSecret=hoplite-token"],
    "certificates": ["auth.tlsSecret=hoplite-tls"],
    "nobody": ["auth.insecure=true"],
    "everything": [
        "auth.tokenSecret=hoplite-token",
        "auth.tlsSecret=hoplite-tls",
        "metrics.podMonitor=true",
        "store.hostNetwork=true",
        "store.nodeSelector.gpu=yes",
        "store.tolerations[0].operator=Exists",
        "store.priorityClassName=system-node-critical",
        "store.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
        ".matchFields[0].key=metadata.name",
        "store.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
        ".matchFields[0].operator=Exists",
        "store.env[0].name=HOPLITE_LOG",
        "store.env[0].value=debug",
        "store.podAnnotations.owner=ml",
        "store.podLabels.team=ml",
        "directory.tolerations[0].operator=Exists",
        "directory.priorityClassName=high",
        "directory.topologySpreadConstraints[0].maxSkew=1",
        "directory.topologySpreadConstraints[0].topologyKey=topology.kubernetes.io/zone",
        "directory.topologySpreadConstraints[0].whenUnsatisfiable=ScheduleAnyway",
        "directory.env[0].name=HOPLITE_LOG",
        "directory.env[0].value=debug",
        "directory.extraArgs[0]=--log-format=text",
        "directory.replicas=3",
        "dashboard.enabled=true",
        "dashboard.hosts[0]=hoplite.example",
        "networkPolicy.dashboardFrom[0].podSelector.matchLabels.app=ingress",
        "imagePullSecrets[0].name=registry",
    ],
    "a claim": ["auth.tokenSecret=hoplite-token", "store.claim=hoplite-socket"],
    "labels of nodes": [
        "auth.tokenSecret=hoplite-token",
        "store.places.from=node",
        "store.places.image=kubectl",
        "store.places.labels.rack=example.com/rack",
    ],
    "no places": ["auth.tokenSecret=hoplite-token", "store.places.labels.zone=null"],
    "no policy": ["auth.tokenSecret=hoplite-token", "networkPolicy.enabled=false"],
}
WRONG = {
    "store.memory=8Gb": 'store.memory is "8Gb": write a whole number with Mi, Gi or Ti, such as 8Gi',
    "store.memory=8": 'store.memory is "8": write a whole number',
    "store.memory=0Gi": 'store.memory is "0Gi": write a whole number',
    "store.memoryOverhead=lots": 'store.memoryOverhead is "lots": write a whole number',
    "store.resources.limits.memory=4Gi": "store.resources.limits.memory is set: the chart computes it",
    "store.memry=8Gi": "at '/store': additional properties 'memry' not allowed",
    "store.hostPath=/x": "at '/store/hostPath': '/x' does not match pattern",
    "store.hostPath=dev/shm/x": "at '/store/hostPath': 'dev/shm/x' does not match pattern",
    "store.places.from=nodes": "at '/store/places/from': value must be one of 'pod', 'node'",
    "store.places.from=node": "store.places.from=node needs store.places.image",
    "store.places.labels.Zone=a": "at '/store/places/labels': additional properties 'Zone' not allowed",
    "store.env[0].nme=x": "at '/store/env/0': additional properties 'nme' not allowed",
    "store.extraArgs=--x": "at '/store/extraArgs': got string, want array",
    "directory.replicas=0": "at '/directory/replicas': minimum: got 0, want 1",
    "directory.replicas=two": "at '/directory/replicas': got string, want integer",
    "directory.prot=1": "at '/directory': additional properties 'prot' not allowed",
    "cluster=a b": "at '/cluster': 'a b' does not match pattern",
    "auth.insecure=maybe": "at '/auth/insecure': got string, want boolean",
    "image.pullPolicy=Sometimes": "at '/image/pullPolicy': value must be one of",
    "dashboard.port=99999": "at '/dashboard/port': maximum",
    "metrics.podMonitor=yes": "at '/metrics/podMonitor': got string, want boolean",
    "dashbord.enabled=true": "additional properties 'dashbord' not allowed",
}


def helm(*arguments: object) -> subprocess.CompletedProcess[str]:
    program = TOOLS / "helm"
    if not program.exists():
        raise unittest.SkipTest("there is no Helm: tests/deploy/install.sh could not fetch it")
    return subprocess.run(
        [program, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def objects(values: list[str], *options: str) -> list[dict[str, Any]]:
    done = helm(
        "template",
        "x",
        CHART,
        "--namespace",
        "y",
        *(f"--set={value}" for value in values),
        *options,
    )
    assert done.returncode == 0, done.stderr
    try:
        import yaml
    except ImportError:
        raise unittest.SkipTest("PyYAML is not installed") from None
    return [item for item in yaml.safe_load_all(done.stdout) if item is not None]


def of_kind(made: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    [found] = [item for item in made if item["kind"] == kind]
    return found


def pods(made: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    found = [
        item if item["kind"] == "Pod" else item["spec"].get("template")
        for item in made
        if "spec" in item
    ]
    return {pod["metadata"]["labels"]["app.kubernetes.io/component"]: pod for pod in found if pod}


def container_of(pod: dict[str, Any]) -> dict[str, Any]:
    [container] = pod["spec"]["containers"]
    return container


class Chart(unittest.TestCase):
    def test_helm_finds_nothing_wrong(self) -> None:
        for values in CHOICES.values():
            done = helm("lint", "--strict", CHART, *(f"--set={value}" for value in values))
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_somebody_must_be_let_in_knowingly(self) -> None:
        done = helm("template", "x", CHART)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("choose who may connect", done.stderr)

    def test_wrong_values_are_refused_with_their_names(self) -> None:
        for value, message in WRONG.items():
            with self.subTest(value):
                done = helm("template", "x", CHART, "--set=auth.insecure=true", f"--set={value}")
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(message, done.stderr)

    def test_the_schema_knows_every_value(self) -> None:
        import yaml

        def missing(values: dict[str, Any], schema: dict[str, Any], path: str) -> list[str]:
            known = schema.get("properties")
            if known is None:
                return []
            unknown = [f"{path}.{key}" for key in values if key not in known]
            deeper = [
                missing(value, known[key], f"{path}.{key}")
                for key, value in values.items()
                if isinstance(value, dict) and key in known
            ]
            return unknown + [name for names in deeper for name in names]

        values = yaml.safe_load((CHART / "values.yaml").read_text())
        schema = json.loads((CHART / "values.schema.json").read_text())
        self.assertEqual(missing(values, schema, ""), [])
        self.assertEqual(set(schema["properties"]) - {"global"}, set(values))

    def test_kubernetes_understands_its_objects(self) -> None:
        try:
            import kubernetes_validate
        except ImportError:
            raise unittest.SkipTest(
                "there are no schemas of Kubernetes: tests/deploy/install.sh could not fetch them"
            ) from None
        for name, values in CHOICES.items():
            made = objects(values)
            kinds = {item["kind"] for item in made}
            self.assertLessEqual(
                {"Service", "StatefulSet", "DaemonSet", "PodDisruptionBudget", "Pod"}, kinds
            )
            self.assertEqual("NetworkPolicy" in kinds, name != "no policy")
            for item in made:
                if item["apiVersion"].startswith("monitoring.coreos.com/"):
                    continue
                for version in VERSIONS:
                    with self.subTest(name, kind=item["kind"], version=version):
                        kubernetes_validate.validate(item, version, strict=True)

    def test_the_validator_refuses_what_is_wrong(self) -> None:
        try:
            import kubernetes_validate
        except ImportError:
            raise unittest.SkipTest(
                "there are no schemas of Kubernetes: tests/deploy/install.sh could not fetch them"
            ) from None
        store = of_kind(objects(["auth.insecure=true"]), "DaemonSet")
        store["spec"]["template"]["spec"]["hostNetwrok"] = True
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(store, VERSIONS[-1], strict=True)


class Values(unittest.TestCase):
    def test_one_value_sets_the_memory(self) -> None:
        for memory, flag, limit in [
            ("8Gi", "8192MiB", "8704Mi"),
            ("300MiB", "300MiB", "812Mi"),
            ("2Ti", "2097152MiB", "2097664Mi"),
        ]:
            store = container_of(
                pods(objects(["auth.insecure=true", f"store.memory={memory}"]))["store"]
            )
            self.assertIn(f"--memory={flag}", store["args"])
            self.assertEqual(store["resources"]["limits"], {"memory": limit})
            self.assertEqual(store["resources"]["requests"], {"cpu": "500m", "memory": limit})
        less = pods(
            objects(
                [
                    "auth.insecure=true",
                    "store.memory=1Gi",
                    "store.memoryOverhead=256Mi",
                    "store.resources.limits.cpu=2",
                ]
            )
        )
        self.assertEqual(
            container_of(less["store"])["resources"]["limits"], {"memory": "1280Mi", "cpu": 2}
        )

    def test_scheduling_environment_annotations_and_labels_reach_the_pods(self) -> None:
        made = pods(objects(CHOICES["everything"]))
        store, directory = made["store"]["spec"], made["directory"]["spec"]
        self.assertEqual(
            (store["priorityClassName"], directory["priorityClassName"]),
            ("system-node-critical", "high"),
        )
        self.assertIn("nodeAffinity", store["affinity"])
        self.assertIn(
            "nodeAffinity", made["test"]["spec"]["affinity"], "the test runs where stores run"
        )
        self.assertEqual(
            directory["topologySpreadConstraints"][0]["topologyKey"], "topology.kubernetes.io/zone"
        )
        self.assertIn("podAntiAffinity", directory["affinity"])
        for component in ("store", "directory"):
            self.assertIn(
                {"name": "HOPLITE_LOG", "value": "debug"}, container_of(made[component])["env"]
            )
        self.assertEqual(made["store"]["metadata"]["annotations"], {"owner": "ml"})
        self.assertEqual(made["store"]["metadata"]["labels"]["team"], "ml")
        replaced = pods(objects(["auth.insecure=true", "directory.affinity.podAffinity.x=y"]))
        self.assertNotIn("podAntiAffinity", replaced["directory"]["spec"]["affinity"])

    def test_labels_of_the_chart_win(self) -> None:
        values = ["auth.insecure=true", r"store.podLabels.app\.kubernetes\.io/component=other"]
        self.assertIn("store", pods(objects(values)))

    def test_the_dashboard_is_on_if_it_is_enabled(self) -> None:
        off = objects(["auth.insecure=true"])
        self.assertFalse([item for item in off if item["metadata"]["name"] == "x-dashboard"])
        self.assertFalse(
            [flag for flag in container_of(pods(off)["directory"])["args"] if "dashboard" in flag]
        )
        on = objects(CHOICES["everything"])
        arguments = container_of(pods(on)["directory"])["args"]
        self.assertLessEqual(
            {"--dashboard=0.0.0.0:7402", "--http-hosts=hoplite.example"}, set(arguments)
        )
        [service] = [item for item in on if item["metadata"]["name"] == "x-dashboard"]
        self.assertEqual(service["spec"]["ports"][0]["port"], 7402)
        rules = of_kind(on, "NetworkPolicy")["spec"]["ingress"]
        self.assertIn(
            {
                "from": [{"podSelector": {"matchLabels": {"app": "ingress"}}}],
                "ports": [{"port": 7402}],
            },
            rules,
        )
        quiet = of_kind(objects(["auth.insecure=true", "dashboard.enabled=true"]), "NetworkPolicy")
        self.assertNotIn(
            {"port": 7402}, [port for rule in quiet["spec"]["ingress"] for port in rule["ports"]]
        )


class Secrets(unittest.TestCase):
    def test_daemons_read_the_files_that_the_kubelet_renews(self) -> None:
        made = pods(objects(CHOICES["everything"]))
        for component in ("store", "directory"):
            spec = made[component]["spec"]
            [volume] = [volume for volume in spec["volumes"] if volume["name"] == "credentials"]
            self.assertEqual(
                [source["secret"]["name"] for source in volume["projected"]["sources"]],
                ["hoplite-token", "hoplite-tls"],
            )
            self.assertEqual(volume["projected"]["defaultMode"], 0o440)
            self.assertEqual(
                spec["securityContext"]["fsGroup"],
                container_of(made[component])["securityContext"]["runAsGroup"],
            )
            for container in [*spec.get("initContainers", []), *spec["containers"]]:
                for mount in container["volumeMounts"]:
                    if mount["name"] == "credentials":
                        self.assertNotIn("subPath", mount, "the kubelet never renews such a mount")
            flags = dict(
                flag.split("=", 1) for flag in container_of(made[component])["args"] if "=" in flag
            )
            self.assertEqual(flags["--token-file"], "/credentials/token")
            self.assertEqual(flags["--tls-key"], "/credentials/tls.key")

    def test_an_upgrade_restarts_the_daemons_after_a_change_of_the_token(self) -> None:
        secret = {
            "kind": "Secret",
            "apiVersion": "v1",
            "metadata": {"name": "t", "namespace": "y"},
            "data": {"token": "eA=="},
        }
        seen = []
        for version in ("1", "2"):
            secret["metadata"] |= {"resourceVersion": version}
            with api_server({"/api/v1/namespaces/y/secrets/t": secret}) as address:
                server = [
                    "--dry-run=server",
                    "--disable-openapi-validation",
                    f"--kube-apiserver={address}",
                ]
                made = objects(["auth.tokenSecret=t"], *server)
            annotations = [
                pods(made)[component]["metadata"]["annotations"]
                for component in ("store", "directory")
            ]
            self.assertEqual(annotations, [{"hoplite/token-version": version}] * 2)
            seen.append(annotations)
        self.assertNotEqual(*seen)


class Places(unittest.TestCase):
    def test_labels_of_the_pod_become_places_without_any_right(self) -> None:
        made = objects(["auth.insecure=true", "store.places.labels.rack=example.com/rack"])
        self.assertFalse(
            [
                item
                for item in made
                if item["kind"] in ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")
            ]
        )
        store = container_of(pods(made)["store"])
        self.assertIn("--labels=rack=$(PLACE_RACK),zone=$(PLACE_ZONE)", store["args"])
        named = {
            entry["name"]: entry["valueFrom"]["fieldRef"]["fieldPath"] for entry in store["env"]
        }
        self.assertEqual(named["PLACE_ZONE"], "metadata.labels['topology.kubernetes.io/zone']")
        self.assertEqual(named["PLACE_RACK"], "metadata.labels['example.com/rack']")

    def test_no_labels_mean_no_flag(self) -> None:
        store = container_of(pods(objects(CHOICES["no places"]))["store"])
        self.assertFalse([argument for argument in store["args"] if "labels" in argument])

    def test_only_the_init_container_may_read_nodes(self) -> None:
        made = objects(CHOICES["labels of nodes"])
        self.assertEqual(
            of_kind(made, "ClusterRole")["rules"],
            [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}],
        )
        spec = pods(made)["store"]["spec"]
        self.assertIs(spec["automountServiceAccountToken"], False)
        with_token = [
            container["name"]
            for container in [*spec["initContainers"], *spec["containers"]]
            if any(mount["name"] == "api-access" for mount in container["volumeMounts"])
        ]
        self.assertEqual(with_token, ["places"])
        self.assertIn("--config=/places/store.toml", spec["containers"][0]["args"])

    def test_labels_of_the_node_become_settings_that_a_store_understands(self) -> None:
        kubectl = needed("kubectl", "kubernetes-client")
        [container] = [
            c
            for c in pods(objects(CHOICES["labels of nodes"]))["store"]["spec"]["initContainers"]
            if c["name"] == "places"
        ]
        variables = {entry["name"]: entry.get("value", "n") for entry in container["env"]}
        labels = {"topology.kubernetes.io/zone": "zone-1", "example.com/rack": "r7"}
        for given, expected in [(labels, ["rack=r7", "zone=zone-1"]), ({}, ["rack=", "zone="])]:
            node = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n", "labels": given}}
            with (
                tempfile.TemporaryDirectory() as place,
                api_server({"/api/v1/nodes/n": node}) as address,
            ):
                here = Path(place)
                (here / "kubectl").write_text(
                    f'#!/bin/sh\nexec {kubectl} --server={address} "$@"\n'
                )
                (here / "kubectl").chmod(0o755)
                program, *arguments = [
                    argument.replace("/places/", f"{place}/") for argument in container["command"]
                ]
                environment = variables | {"PATH": f"{place}:{os.environ['PATH']}", "HOME": place}
                subprocess.run([program, *arguments], env=environment, check=True)
                self.assertEqual(
                    tomllib.loads((here / "store.toml").read_text()), {"labels": expected}
                )


class Exposed(unittest.TestCase):
    def broken(self, values: list[str]) -> dict[str, set[tuple[str, str]]]:
        return {component: violations(pod) for component, pod in pods(objects(values)).items()}

    def test_the_chart_is_restricted_but_for_the_volume_of_the_socket(self) -> None:
        volume = {
            ("baseline: HostPath Volumes", "volumes[socket]"),
            ("restricted: Volume Types", "volumes[socket]"),
        }
        for name, values in CHOICES.items():
            if name in ("everything", "a claim"):
                continue
            with self.subTest(name):
                self.assertEqual(
                    self.broken(values), {"store": volume, "directory": set(), "test": volume}
                )

    def test_with_a_claim_nothing_is_broken(self) -> None:
        self.assertEqual(
            self.broken(CHOICES["a claim"]), {"store": set(), "directory": set(), "test": set()}
        )

    def test_the_network_of_the_host_adds_its_ports(self) -> None:
        rules = {rule for rule, _ in self.broken(CHOICES["everything"])["store"]}
        expected = {
            "baseline: HostPath Volumes",
            "restricted: Volume Types",
            "baseline: Host Namespaces",
            "baseline: Host Ports",
        }
        self.assertEqual(rules, expected)
        self.assertEqual(self.broken(CHOICES["everything"])["directory"], set())

    def test_the_claim_of_the_documents_is_understood(self) -> None:
        import kubernetes_validate
        import yaml

        text = "".join(page.read_text() for page in sorted(ROOT.glob("docs/**/*.md")))
        [example] = [
            block
            for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
            if "kind: PersistentVolume\n" in block
        ]
        volume, claim = yaml.safe_load_all(example)
        for item in (volume, claim):
            for version in VERSIONS:
                kubernetes_validate.validate(item, version, strict=True)
        self.assertEqual(volume["spec"]["hostPath"]["path"], "/dev/shm")
        self.assertEqual(claim["spec"]["volumeName"], volume["metadata"]["name"])
        store = pods(objects([*CHOICES["a token"], f"store.claim={claim['metadata']['name']}"]))[
            "store"
        ]
        self.assertEqual(container_of(store)["volumeMounts"][0]["subPath"], "hoplite")
