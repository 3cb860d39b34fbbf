import copy
import unittest
from typing import Any

from deploy.pod_security import RULES, violations

GOOD: dict[str, Any] = {
    "metadata": {
        "annotations": {"container.apparmor.security.beta.kubernetes.io/main": "runtime/default"}
    },
    "spec": {
        "securityContext": {
            "runAsNonRoot": True,
            "sysctls": [{"name": "net.ipv4.tcp_rmem", "value": "1 2 3"}],
        },
        "containers": [
            {
                "name": "main",
                "ports": [{"containerPort": 80}],
                "livenessProbe": {"httpGet": {"path": "/", "port": 80}},
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
                    "runAsUser": 1,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
            }
        ],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            {"name": "disk", "persistentVolumeClaim": {"claimName": "x"}},
        ],
    },
}
# A path without a leading slash begins at a container.
BAD: list[tuple[str, Any, set[str]]] = [
    ("securityContext.windowsOptions", {"hostProcess": True}, {"baseline: HostProcess"}),
    ("/spec.hostPID", True, {"baseline: Host Namespaces"}),
    ("/spec.hostIPC", True, {"baseline: Host Namespaces"}),
    ("/spec.hostNetwork", True, {"baseline: Host Namespaces", "baseline: Host Ports"}),
    ("securityContext.privileged", True, {"baseline: Privileged Containers"}),
    ("securityContext.capabilities.add", ["CHOWN"], {"restricted: Capabilities"}),
    (
        "securityContext.capabilities.add",
        ["SYS_ADMIN"],
        {"baseline: Capabilities", "restricted: Capabilities"},
    ),
    ("securityContext.capabilities.drop", ["CHOWN"], {"restricted: Capabilities"}),
    (
        "/spec.volumes",
        [{"name": "x", "hostPath": {"path": "/"}}],
        {"baseline: HostPath Volumes", "restricted: Volume Types"},
    ),
    (
        "/spec.volumes",
        [{"name": "x", "nfs": {"server": "s", "path": "/"}}],
        {"restricted: Volume Types"},
    ),
    ("ports", [{"containerPort": 80, "hostPort": 80}], {"baseline: Host Ports"}),
    ("livenessProbe.httpGet.host", "10.0.0.1", {"baseline: Host Probes / Lifecycle Hooks"}),
    (
        "lifecycle",
        {"preStop": {"tcpSocket": {"host": "a", "port": 1}}},
        {"baseline: Host Probes / Lifecycle Hooks"},
    ),
    ("securityContext.appArmorProfile", {"type": "Unconfined"}, {"baseline: AppArmor"}),
    (
        "/metadata.annotations",
        {"container.apparmor.security.beta.kubernetes.io/main": "unconfined"},
        {"baseline: AppArmor"},
    ),
    ("securityContext.seLinuxOptions", {"type": "spc_t"}, {"baseline: SELinux"}),
    ("securityContext.seLinuxOptions", {"user": "system_u"}, {"baseline: SELinux"}),
    ("securityContext.procMount", "Unmasked", {"baseline: /proc Mount Type"}),
    (
        "securityContext.seccompProfile",
        {"type": "Unconfined"},
        {"baseline: Seccomp", "restricted: Seccomp"},
    ),
    ("securityContext.seccompProfile", {}, {"restricted: Seccomp"}),
    (
        "/spec.securityContext.sysctls",
        [{"name": "kernel.msgmax", "value": "1"}],
        {"baseline: Sysctls"},
    ),
    ("securityContext.allowPrivilegeEscalation", True, {"restricted: Privilege Escalation"}),
    ("securityContext.runAsNonRoot", False, {"restricted: Running as Non-root"}),
    ("/spec.securityContext.runAsNonRoot", False, {"restricted: Running as Non-root"}),
    ("securityContext.runAsUser", 0, {"restricted: Running as Non-root user"}),
    ("/spec.securityContext.runAsUser", 0, {"restricted: Running as Non-root user"}),
    (
        "securityContext",
        {},
        {"restricted: Privilege Escalation", "restricted: Seccomp", "restricted: Capabilities"},
    ),
]


class Rules(unittest.TestCase):
    def test_a_good_pod_breaks_none(self) -> None:
        self.assertEqual(violations(GOOD), set())

    def test_each_change_breaks_its_rules(self) -> None:
        for kind in ("containers", "initContainers", "ephemeralContainers"):
            for path, value, expected in BAD:
                with self.subTest(path, kind=kind, value=value):
                    pod = copy.deepcopy(GOOD)
                    if kind != "containers":
                        pod["spec"][kind] = [
                            copy.deepcopy(pod["spec"]["containers"][0]) | {"name": "other"}
                        ]
                    place: Any = pod if path.startswith("/") else pod["spec"][kind][0]
                    *parents, last = path.removeprefix("/").split(".")
                    for key in parents:
                        place = place[key]
                    place[last] = value
                    self.assertEqual({rule for rule, _ in violations(pod)}, expected)

    def test_every_rule_has_a_change_that_breaks_it(self) -> None:
        self.assertEqual({rule for _, _, rules in BAD for rule in rules}, set(RULES))
