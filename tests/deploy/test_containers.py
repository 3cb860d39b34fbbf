"""The image, and clusters in containers of it: that of compose.yaml, and the pods of the chart."""

import os
import resource
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any

from deploy.containers import DEBIAN, Docker, small_root
from deploy.test_chart import objects, of_kind
from deploy.test_files import BINARIES, DEPLOY, ROOT

PROGRAMS = ["hoplite", "hoplite-store", "hoplite-directory"]
# What the Dockerfile and the chart call.
SYSTEM = ["sh", "install", "mkdir", "groupadd", "useradd", "id", "cat", "cp"]
# Stands in for the compiler: the programs that are tested have been built already.
CARGO = """#!/bin/sh -e
test "$*" = "build --profile dist --locked -p hoplite-cli -p hoplite-store -p hoplite-directory"
mkdir -p target/dist
cp /built/* target/dist/
"""
TOKEN = "a token of these tests, long enough\n"


def make_image(docker: Docker) -> None:
    """Builds deploy/docker/Dockerfile upon images of this machine's own programs, as `hoplite`."""
    with tempfile.TemporaryDirectory() as place:
        runtime = Path(place) / "runtime"
        small_root(runtime, [*SYSTEM, *(BINARIES / program for program in PROGRAMS)])
        for name in PROGRAMS:
            (runtime / "usr/bin" / name).unlink()
        shutil.copy("/etc/login.defs", runtime / "etc")
        docker.import_root("local-runtime", runtime)
        build = Path(place) / "build"
        small_root(build, [*SYSTEM, "strip"])
        (build / "built").mkdir()
        for name in PROGRAMS:
            # Without what a debugger reads they are a tenth of it.
            subprocess.run(["strip", "-o", build / "built" / name, BINARIES / name], check=True)
        cargo = build / "usr/bin/cargo"
        cargo.write_text(CARGO)
        cargo.chmod(0o755)
        docker.import_root("local-build", build)
    bases = ["--build-arg", "BUILD=local-build", "--build-arg", "RUNTIME=local-runtime"]
    dockerfile = DEPLOY / "docker/Dockerfile"
    docker.run("build", "--file", dockerfile, *bases, "--target", "build", "--tag", "hoplite-sources", ROOT)
    docker.run("build", "--file", dockerfile, *bases, "--tag", "hoplite", ROOT)


docker: Docker


def setUpModule() -> None:
    global docker
    docker = Docker()
    unittest.addModuleCleanup(docker.close)
    make_image(docker)


class Image(unittest.TestCase):
    def test_it_is_built_from_all_that_cargo_needs_and_no_more(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            container = docker.run("create", "hoplite-sources", "sh")
            docker.run("cp", f"{container}:/src", place)
            sources = Path(place) / "src"
            metadata = ["cargo", "metadata", "--locked", "--offline", "--no-deps", "--format-version", "1"]
            done = subprocess.run(metadata, cwd=sources, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual({path.name for path in (sources / "target/dist").iterdir()}, set(PROGRAMS))
            self.assertFalse((sources / ".git").exists())
            self.assertFalse((sources / "deploy").exists())

    def test_it_has_the_programs_and_is_nobody(self) -> None:
        run = ["run", "--rm", "--network", "none", "--read-only", "--cap-drop", "ALL", "hoplite"]
        for program in PROGRAMS:
            self.assertRegex(docker.run(*run, program, "--version"), rf"^{program} \d")
        self.assertEqual(docker.run(*run, "id"), "uid=7400(hoplite) gid=7400(hoplite) groups=7400(hoplite)")

    def test_compose_makes_a_cluster_that_prometheus_sees(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            prometheus = Path(place) / "prometheus"
            small_root(prometheus, [DEBIAN / "usr/bin/prometheus", DEBIAN / "usr/bin/promtool"])
            docker.import_root("prom/prometheus:v2.53.0", prometheus, 'ENTRYPOINT ["prometheus"]', "WORKDIR /tmp")
            for directory in ("docker", "monitoring"):
                shutil.copytree(DEPLOY / directory, Path(place) / "deploy" / directory)
            here = Path(place) / "deploy/docker"
            token = here / "token"
            token.write_text(TOKEN)
            token.chmod(0o400)
            os.chown(token, 7400, 7400)
            scraped = here / "prometheus.yml"
            scraped.write_text(scraped.read_text().replace("scrape_interval: 5s", "scrape_interval: 500ms"))
            # Debian 12's compose is older than the top-level name.
            compose = here / "compose.yaml"
            text = compose.read_text().replace("\nname: hoplite\n", "\n")
            # Nobody can raise a limit without the capability for it.
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            compose.write_text(text.replace("nofile: 65536", f"nofile: {min(65536, most)}"))
            project = ["--project-name", "hoplite"]
            # Grafana's image cannot be had.
            stores = [f"store-{number}" for number in range(3)]
            docker.compose(here, *project, "up", "--no-build", "--detach", *stores, "prometheus")
            for store in stores:
                docker.eventually("exec", f"hoplite_{store}_1", "hoplite", "status")
            docker.run("exec", "hoplite_store-0_1", "hoplite", "put", "x", "/etc/passwd")
            for store in stores:
                got = docker.run("exec", f"hoplite_{store}_1", "hoplite", "--timeout", "300s", "get", "x")
                self.assertIn(":7400:7400::/:", got, "the user database of the image")
            query = ["promtool", "query", "instant", "http://127.0.0.1:9090"]
            up = ["exec", "hoplite_prometheus_1", *query]
            docker.eventually(*up, "count(up == 1) == 5")
            docker.eventually(*up, "sum(hoplite_ready) == 5")
            docker.compose(here, *project, "stop", "--timeout", "10")
            for store in stores:
                ended = docker.run("inspect", "--format", "{{.State.ExitCode}}", f"hoplite_{store}_1")
                self.assertEqual(ended, "0", "in order, on SIGTERM")
            docker.compose(here, *project, "down")


class Pods(unittest.TestCase):
    """The containers of the pods of the chart, as far as Docker can stand in for a kubelet, with their commands, users, privileges and mounts."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.made = objects(["auth.tokenSecret=hoplite-token", "store.memory=64MiB", "image.tag=latest", "directory.replicas=1"])
        place = tempfile.TemporaryDirectory()
        cls.addClassCleanup(place.cleanup)
        cls.place = Path(place.name)
        cls.place.chmod(0o755)

    def volume(self, pod: str, volume: dict[str, Any]) -> Path:
        """What a kubelet would make of a volume: secrets are links to files that everybody may read."""
        path = self.place / pod / volume["name"]
        path.mkdir(parents=True)
        if "secret" in volume:
            (path / "..data").mkdir()
            for item in volume["secret"]["items"]:
                (path / "..data" / item["path"]).write_text(TOKEN)
                (path / item["path"]).symlink_to(f"..data/{item['path']}")
        elif "emptyDir" in volume:
            path.chmod(0o777)
        return path

    def start(self, pod: str, spec: dict[str, Any], *names: str) -> None:
        """Starts a pod whose name in the network is one of `names`."""
        volumes = {volume["name"]: self.volume(pod, volume) for volume in spec["volumes"]}

        def flags(container: dict[str, Any]) -> list[object]:
            context = container["securityContext"]
            capabilities = context["capabilities"]
            said: list[object] = [
                f"--user={context['runAsUser']}:{context['runAsGroup']}",
                "--security-opt=no-new-privileges",
                *(f"--cap-drop={capability}" for capability in capabilities["drop"]),
                *(f"--cap-add={capability}" for capability in capabilities.get("add", [])),
            ]
            assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]
            said.append("--read-only")
            for mount in container["volumeMounts"]:
                mode = ":ro" if mount.get("readOnly") else ""
                said.append(f"--volume={volumes[mount['name']]}:{mount['mountPath']}{mode}")
            return said

        for container in spec["initContainers"]:
            command, *arguments = container["command"]
            docker.run(
                "run", "--rm", "--network=none", *flags(container), f"--entrypoint={command}", container["image"], *arguments
            )
        [container] = spec["containers"]
        variables = {"$(POD_IP)": names[0], "$(NODE_NAME)": pod}
        arguments = container["command"] + container["args"]
        for variable, value in variables.items():
            arguments = [argument.replace(variable, value) for argument in arguments]
        network = ["--network=pods", *(f"--network-alias={name}" for name in names)]
        docker.run("run", "--detach", f"--name={pod}", *network, *flags(container), container["image"], *arguments)

    def test_they_make_a_cluster(self) -> None:
        docker.run("network", "create", "pods")
        directory = of_kind(self.made, "StatefulSet")["spec"]["template"]["spec"]
        store = of_kind(self.made, "DaemonSet")["spec"]["template"]["spec"]
        self.start("directory", directory, "x-directory-0.x-directory.y.svc")
        for node in ("one", "two"):
            self.start(node, store, node)
        for node in ("one", "two"):
            docker.eventually("exec", node, "hoplite", "status")
        docker.run("exec", "one", "hoplite", "put", "x", "/etc/group")
        self.assertIn("hoplite:x:7400:", docker.run("exec", "two", "hoplite", "--timeout", "300s", "get", "x"))
        token = self.place / "one/credentials/token"
        self.assertEqual((token.stat().st_uid, token.stat().st_mode & 0o777), (7400, 0o400))
        self.assertEqual(os.stat(self.place / "one/socket").st_uid, 7400)
