"""Pod Security Standards of Kubernetes 1.35, `baseline` and `restricted`.

As in the API server, each port of a container with `hostNetwork` counts as a port of the host.
"""

from collections.abc import Callable, Iterator
from typing import Any

Pod = dict[str, Any]
Rule = Callable[[Pod], Iterator[str]]

CONTAINERS = ("initContainers", "containers", "ephemeralContainers")
BASELINE_CAPABILITIES = {
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD"),
    *("NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
}
SELINUX_TYPES = {
    None,
    "",
    "container_t",
    "container_init_t",
    "container_kvm_t",
    "container_engine_t",
}
SAFE_SYSCTLS = {
    *(
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.ip_unprivileged_port_start",
    ),
    *("net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports"),
    *("net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl"),
    *("net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"),
}
RESTRICTED_VOLUMES = {
    *(
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    ),
}
APPARMOR_ANNOTATION = "container.apparmor.security.beta.kubernetes.io/"


def containers(pod: Pod) -> Iterator[tuple[str, dict[str, Any]]]:
    for kind in CONTAINERS:
        for container in pod["spec"].get(kind, []):
            yield f"{kind}[{container['name']}]", container


def contexts(pod: Pod) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "securityContext", pod["spec"].get("securityContext", {})
    for path, container in containers(pod):
        yield f"{path}.securityContext", container.get("securityContext", {})


def windows_host_process(pod: Pod) -> Iterator[str]:
    return (
        path
        for path, context in contexts(pod)
        if context.get("windowsOptions", {}).get("hostProcess")
    )


def host_namespaces(pod: Pod) -> Iterator[str]:
    return (key for key in ("hostNetwork", "hostPID", "hostIPC") if pod["spec"].get(key))


def privileged(pod: Pod) -> Iterator[str]:
    return (path for path, context in contexts(pod) if context.get("privileged"))


def added_capabilities(pod: Pod) -> Iterator[str]:
    for path, context in contexts(pod):
        if set(context.get("capabilities", {}).get("add", [])) - BASELINE_CAPABILITIES:
            yield path


def host_path_volumes(pod: Pod) -> Iterator[str]:
    return (
        f"volumes[{volume['name']}]"
        for volume in pod["spec"].get("volumes", [])
        if "hostPath" in volume
    )


def host_ports(pod: Pod) -> Iterator[str]:
    for path, container in containers(pod):
        for port in container.get("ports", []):
            if port.get("hostPort") or pod["spec"].get("hostNetwork"):
                yield f"{path}.ports[{port['containerPort']}]"


def host_of_probes(pod: Pod) -> Iterator[str]:
    for path, container in containers(pod):
        hooks = {
            key: container.get(key, {})
            for key in ("livenessProbe", "readinessProbe", "startupProbe")
        }
        for key, hook in {**hooks, **container.get("lifecycle", {})}.items():
            if any(hook.get(action, {}).get("host") for action in ("httpGet", "tcpSocket")):
                yield f"{path}.{key}"


def apparmor(pod: Pod) -> Iterator[str]:
    for path, context in contexts(pod):
        if context.get("appArmorProfile", {}).get("type") not in (
            None,
            "RuntimeDefault",
            "Localhost",
        ):
            yield path
    for key, profile in pod["metadata"].get("annotations", {}).items():
        if key.startswith(APPARMOR_ANNOTATION) and profile not in ("", "runtime/default"):
            if not profile.startswith("localhost/"):
                yield key


def selinux(pod: Pod) -> Iterator[str]:
    for path, context in contexts(pod):
        options = context.get("seLinuxOptions", {})
        if options.get("type") not in SELINUX_TYPES or options.get("user") or options.get("role"):
            yield path


def proc_mount(pod: Pod) -> Iterator[str]:
    return (
        path for path, context in contexts(pod) if context.get("procMount", "Default") != "Default"
    )


def unconfined_seccomp(pod: Pod) -> Iterator[str]:
    for path, context in contexts(pod):
        if context.get("seccompProfile", {}).get("type") not in (
            None,
            "RuntimeDefault",
            "Localhost",
        ):
            yield path


def sysctls(pod: Pod) -> Iterator[str]:
    for sysctl in pod["spec"].get("securityContext", {}).get("sysctls", []):
        if sysctl["name"] not in SAFE_SYSCTLS:
            yield f"securityContext.sysctls[{sysctl['name']}]"


def volume_types(pod: Pod) -> Iterator[str]:
    for volume in pod["spec"].get("volumes", []):
        if set(volume) - {"name"} - RESTRICTED_VOLUMES:
            yield f"volumes[{volume['name']}]"


def privilege_escalation(pod: Pod) -> Iterator[str]:
    for path, container in containers(pod):
        if container.get("securityContext", {}).get("allowPrivilegeEscalation") is not False:
            yield path


def of_container_or_pod(pod: Pod, container: dict[str, Any], key: str) -> Any:
    of_pod = pod["spec"].get("securityContext", {}).get(key)
    return container.get("securityContext", {}).get(key, of_pod)


def running_as_non_root(pod: Pod) -> Iterator[str]:
    return (
        path
        for path, container in containers(pod)
        if of_container_or_pod(pod, container, "runAsNonRoot") is not True
    )


def running_as_user_root(pod: Pod) -> Iterator[str]:
    return (path for path, context in contexts(pod) if context.get("runAsUser") == 0)


def missing_seccomp(pod: Pod) -> Iterator[str]:
    for path, container in containers(pod):
        profile = of_container_or_pod(pod, container, "seccompProfile") or {}
        if profile.get("type") not in ("RuntimeDefault", "Localhost"):
            yield path


def kept_capabilities(pod: Pod) -> Iterator[str]:
    for path, container in containers(pod):
        capabilities = container.get("securityContext", {}).get("capabilities", {})
        if "ALL" not in capabilities.get("drop", []) or set(capabilities.get("add", [])) - {
            "NET_BIND_SERVICE"
        }:
            yield path


RULES: dict[str, Rule] = {
    "baseline: HostProcess": windows_host_process,
    "baseline: Host Namespaces": host_namespaces,
    "baseline: Privileged Containers": privileged,
    "baseline: Capabilities": added_capabilities,
    "baseline: HostPath Volumes": host_path_volumes,
    "baseline: Host Ports": host_ports,
    "baseline: Host Probes / Lifecycle Hooks": host_of_probes,
    "baseline: AppArmor": apparmor,
    "baseline: SELinux": selinux,
    "baseline: /proc Mount Type": proc_mount,
    "baseline: Seccomp": unconfined_seccomp,
    "baseline: Sysctls": sysctls,
    "restricted: Volume Types": volume_types,
    "restricted: Privilege Escalation": privilege_escalation,
    "restricted: Running as Non-root": running_as_non_root,
    "restricted: Running as Non-root user": running_as_user_root,
    "restricted: Seccomp": missing_seccomp,
    "restricted: Capabilities": kept_capabilities,
}


def violations(pod: Pod) -> set[tuple[str, str]]:
    return {(name, path) for name, rule in RULES.items() for path in rule(pod)}
