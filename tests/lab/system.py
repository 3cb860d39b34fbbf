"""The commands of the operating system that a lab needs."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from .errors import LabError, NotAvailable

_PROGRAMS: Final = {
    "ip": "iproute2",
    "tc": "iproute2",
    "bridge": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "mount": "mount",
    "hostname": "hostname",
}
_NAMESPACES: Final = Path("/run/netns")
_TIMEOUT_S: Final = 300


def require() -> None:
    if os.geteuid() != 0:
        raise NotAvailable("a lab needs root: it makes network namespaces")
    # Debian's users have no sbin in their path.
    os.environ["PATH"] = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    for program, package in _PROGRAMS.items():
        if shutil.which(program) is None:
            raise NotAvailable(f"a lab needs `{program}`: install the package {package}")


def run(command: list[str], script: str | None = None) -> str:
    try:
        result = subprocess.run(
            command,
            input=script or "",
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        raise LabError(f"`{' '.join(command)}` did not end in {_TIMEOUT_S} s") from expired
    if result.returncode != 0:
        raise LabError(f"`{' '.join(command)}` failed: {' '.join(result.stderr.split())}")
    return result.stdout


def compile_library(source: Path, library: Path, *options: str) -> None:
    if shutil.which("cc") is None:
        raise NotAvailable("a preloaded library needs `cc`: install the package gcc")
    run(["cc", "-O2", "-shared", "-fPIC", *options, "-o", str(library), str(source)])


def configure(namespace: str, scripts: tuple[str, str]) -> None:
    for program, script in zip(("ip", "tc"), scripts, strict=True):
        if script:
            try:
                run([program, "-netns", namespace, "-batch", "-"], script)
            except LabError as error:
                if "Unknown device type" in str(error) or "qdisc kind is unknown" in str(error):
                    raise NotAvailable(f"this kernel lacks veth, bridge or tbf: {error}") from error
                raise


def network_namespaces() -> list[str]:
    return sorted(os.listdir(_NAMESPACES)) if _NAMESPACES.is_dir() else []


def processes(namespace: str) -> list[int]:
    return [int(pid) for pid in run(["ip", "netns", "pids", namespace]).split()]
