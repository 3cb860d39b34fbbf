"""Clusters of containers: of compose.yaml, and of the chart's pods."""

import os
import re
import resource
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any

from deploy.containers import DEBIAN, PATIENCE_S, Docker, small_root
from deploy.test_chart import objects, pods
from deploy.test_files import BINARIES, DEPLOY, ROOT

PROGRAMS = ["hoplite", "hoplite-store", "hoplite-directory"]
SYSTEM = ["sh", "install", "mkdir", "groupadd", "useradd", "id", "cat", "cp", "head", "cmp"]
# Stands for Cargo, because the tested programs are built already.
CARGO = """#!/bin/sh -e
test "$*" = "build --profile dist --locked -p hoplite-cli -p hoplite-store -p hoplite-directory"
mkdir -p target/dist
cp /built/* target/dist/
"""
TOKEN = "a token of these tests, long enough\n"


def make_image(docker: Docker) -> None:
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
            subprocess.run(["strip", "-o", build / "built" / name, BINARIES / name], check=True)
        cargo = build / "usr/bin/cargo"
        cargo.write_text(CARGO)
        cargo.chmod(0o755)
        docker.import_root("local-build", build)
    bases = ["--build-arg", "BUILD=local-build", "--build-arg", "RUNTIME=local-runtime"]
    dockerfile = DEPLOY / "docker/Dockerfile"
    docker.run(
        "build", "--file", dockerfile, *bases, "--target", "build", "--tag", "hoplite-sources", ROOT
    )
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
            metadata = [
                "cargo",
                "metadata",
                "--locked",
                "--offline",
                "--no-deps",
                "--format-version",
                "1",
            ]
            done = subprocess.run(
                metadata, cwd=sources, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(
                {path.name for path in (sources / "target/dist").iterdir()}, set(PROGRAMS)
            )
            self.assertFalse((sources / ".git").exists())
            self.assertFalse((sources / "deploy").exists())

    def test_it_has_the_programs_and_is_nobody(self) -> None:
        run = ["run", "--rm", "--network", "none", "--read-only", "--cap-drop", "ALL", "hoplite"]
        for program in PROGRAMS:
            self.assertRegex(docker.run(*run, program, "--version"), rf"^{program} \d")
        self.assertEqual(
            docker.run(*run, "id"), "uid=7400(hoplite) gid=7400(hoplite) groups=7400(hoplite)"
        )

    def test_compose_makes_a_cluster_that_prometheus_sees(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            prometheus = Path(place) / "prometheus"
            small_root(prometheus, [DEBIAN / "usr/bin/prometheus", DEBIAN / "usr/bin/promtool"])
            docker.import_root(
                "prom/prometheus:v2.53.0", prometheus, 'ENTRYPOINT ["prometheus"]', "WORKDIR /tmp"
            )
            for directory in ("docker", "monitoring"):
                shutil.copytree(DEPLOY / directory, Path(place) / "deploy" / directory)
            here = Path(place) / "deploy/docker"
            token = here / "token"
            token.write_text(TOKEN)
            token.chmod(0o400)
            os.chown(token, 7400, 7400)
            scraped = here / "prometheus.yml"
            scraped.write_text(
                scraped.read_text().replace("scrape_interval: 5s", "scrape_interval: 500ms")
            )
            compose = here / "compose.yaml"
            text = compose.read_text().replace("\nname: hoplite\n", "\n")
            # Raising a limit needs a capability.
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            compose.write_text(text.replace("nofile: 65536", f"nofile: {min(65536, most)}"))
            project = ["--project-name", "hoplite"]
            stores = [f"store-{number}" for number in range(3)]
            docker.compose(here, *project, "up", "--no-build", "--detach", *stores, "prometheus")
            for store in stores:
                docker.eventually("exec", f"hoplite_{store}_1", "hoplite", "status")
            docker.run("exec", "hoplite_store-0_1", "hoplite", "put", "x", "/etc/passwd")
            for store in stores:
                got = docker.run(
                    "exec", f"hoplite_{store}_1", "hoplite", "--timeout", "300s", "get", "x"
                )
                self.assertIn(":7400:7400::/:", got, "the user database of the image")
            query = ["promtool", "query", "instant", "http://127.0.0.1:9090"]
            up = ["exec", "hoplite_prometheus_1", *query]
            docker.eventually(*up, "count(up == 1) == 5")
            docker.eventually(*up, "sum(hoplite_ready) == 5")
            self.assertIn(
                "0.0.0.0:7402",
                docker.run("logs", "hoplite_directory-0_1"),
                "the address of the dashboard",
            )
            docker.environment["HOPLITE_DASHBOARD"] = ""
            self.assertNotIn(
                "0.0.0.0:7402", docker.compose(here, *project, "config"), "it can be switched off"
            )
            del docker.environment["HOPLITE_DASHBOARD"]
            docker.compose(here, *project, "stop", "--timeout", f"{PATIENCE_S:.0f}")
            for store in stores:
                ended = docker.run(
                    "inspect", "--format", "{{.State.ExitCode}}", f"hoplite_{store}_1"
                )
                self.assertEqual(ended, "0", "in order, on SIGTERM")
            docker.compose(here, *project, "down")


class Pods(unittest.TestCase):
    """The chart's pods; Docker stands in for a kubelet."""

    @classmethod
    def setUpClass(cls) -> None:
        values = [
            "auth.tokenSecret=hoplite-token",
            "auth.tlsSecret=hoplite-tls",
            "store.memory=64Mi",
            "image.tag=latest",
            "directory.replicas=1",
        ]
        cls.pods = {component: pod["spec"] for component, pod in pods(objects(values)).items()}
        place = tempfile.TemporaryDirectory()
        cls.addClassCleanup(place.cleanup)
        cls.place = Path(place.name)
        cls.place.chmod(0o755)
        cls.secret = cls.new_secret("first")
        cls.credentials: list[Path] = []
        docker.run("network", "create", "pods")
        cls.start("directory", "directory", "head", "x-directory-0.x-directory.y.svc")
        for node in ("one", "two"):
            cls.start(node, "store", node, node)
        for node in ("one", "two"):
            docker.eventually("exec", node, "hoplite", "status")

    @classmethod
    def new_secret(cls, name: str) -> dict[str, bytes]:
        made = cls.place / name
        subprocess.run(
            [BINARIES / "hoplite", "certs", made, "hoplite"], check=True, stdout=subprocess.DEVNULL
        )
        files = {"ca.crt": "ca.pem", "tls.crt": "hoplite.pem", "tls.key": "hoplite-key.pem"}
        return {
            "token": TOKEN.encode(),
            **{key: (made / file).read_bytes() for key, file in files.items()},
        }

    @classmethod
    def write_secret(cls, path: Path, group: int) -> None:
        """Replaces files atomically, as a kubelet does."""
        version = path / f"..{len(list(path.iterdir()))}"
        version.mkdir(mode=0o755)
        for key, content in cls.secret.items():
            file = version / key
            file.write_bytes(content)
            file.chmod(0o440)
            os.chown(file, 0, group)
            if not (path / key).is_symlink():
                (path / key).symlink_to(f"..data/{key}")
        (path / "..new").symlink_to(version.name)
        (path / "..new").rename(path / "..data")

    @classmethod
    def volume(cls, pod: str, node: str, volume: dict[str, Any], group: int) -> Path:
        if "hostPath" in volume:
            path = cls.place / "hosts" / node
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o1777)
            return path
        path = cls.place / "volumes" / pod / volume["name"]
        path.mkdir(parents=True)
        if "projected" in volume:
            cls.write_secret(path, group)
            cls.credentials.append(path)
        else:
            path.chmod(0o777)
        return path

    @classmethod
    def options(
        cls,
        pod: str,
        node: str,
        spec: dict[str, Any],
        container: dict[str, Any],
        volumes: dict[str, Path],
    ) -> tuple[list[object], list[str]]:
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]
        of_pod = spec["securityContext"]
        groups = [
            *of_pod.get("supplementalGroups", []),
            *([of_pod["fsGroup"]] if "fsGroup" in of_pod else []),
        ]
        said: list[object] = [
            "--read-only",
            f"--user={context['runAsUser']}:{context['runAsGroup']}",
            *(f"--group-add={group}" for group in groups),
            "--security-opt=no-new-privileges",
            *(f"--cap-drop={capability}" for capability in context["capabilities"]["drop"]),
            *(f"--cap-add={capability}" for capability in context["capabilities"].get("add", [])),
        ]
        for mount in container.get("volumeMounts", []):
            mode = ":ro" if mount.get("readOnly") else ""
            source = volumes[mount["name"]] / mount.get("subPath", "")
            assert source.exists(), f"a kubelet would make {source} as root"
            said.append(f"--volume={source}:{mount['mountPath']}{mode}")
        fields = {"status.podIP": node, "spec.nodeName": node, "metadata.uid": pod}
        variables: dict[str, str] = {}

        def expanded(text: str) -> str:
            return re.sub(r"\$\((\w+)\)", lambda found: variables[found[1]], text)

        for entry in container.get("env", []):
            field = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            variables[entry["name"]] = fields.get(field, "") if field else expanded(entry["value"])
        said += [f"--env={name}={value}" for name, value in variables.items()]
        return said, [
            expanded(argument) for argument in container["command"] + container.get("args", [])
        ]

    @classmethod
    def start(cls, pod: str, component: str, node: str, *names: str) -> None:
        spec = cls.pods[component]
        group = spec["securityContext"].get("fsGroup", 0)
        volumes = {
            volume["name"]: cls.volume(pod, node, volume, group)
            for volume in spec.get("volumes", [])
        }
        for container in spec.get("initContainers", []):
            flags, (command, *arguments) = cls.options(pod, node, spec, container, volumes)
            docker.run(
                "run",
                "--rm",
                "--network=none",
                *flags,
                f"--entrypoint={command}",
                container["image"],
                *arguments,
            )
        [container] = spec["containers"]
        flags, command = cls.options(pod, node, spec, container, volumes)
        if names:
            network = ["--network=pods", *(f"--network-alias={name}" for name in names)]
            docker.run(
                "run", "--detach", f"--name={pod}", *network, *flags, container["image"], *command
            )
        else:
            docker.run("run", "--rm", "--network=none", *flags, container["image"], *command)

    def test_they_make_a_cluster(self) -> None:
        docker.run("exec", "one", "hoplite", "put", "x", "/etc/group")
        self.assertIn(
            "hoplite:x:7400:", docker.run("exec", "two", "hoplite", "--timeout", "300s", "get", "x")
        )
        made = (self.place / "hosts/one/hoplite").stat()
        self.assertEqual((made.st_uid, made.st_gid, made.st_mode & 0o7777), (7400, 7400, 0o755))

    def test_the_test_of_the_chart_passes_and_fails_without_a_store(self) -> None:
        self.start("test-passes", "test", "one")
        (self.place / "hosts/none/hoplite").mkdir(parents=True)
        with self.assertRaisesRegex(AssertionError, "store.sock"):
            self.start("test-fails", "test", "none")

    def test_renewed_certificates_reach_daemons_that_run(self) -> None:
        docker.run("exec", "one", "hoplite", "put", "y", "/etc/group")
        type(self).secret = self.new_secret("second")
        for path in self.credentials:
            self.write_secret(path, 7400)
        self.start("three", "store", "three", "three")
        docker.eventually("exec", "three", "hoplite", "status")
        self.assertIn(
            "hoplite:x:7400:",
            docker.run("exec", "three", "hoplite", "--timeout", "300s", "get", "y"),
        )

    def test_a_directory_of_another_user_is_refused(self) -> None:
        for name, make in {
            "foreign": Path.mkdir,
            "linked": lambda path: path.symlink_to("elsewhere"),
        }.items():
            host = self.place / "hosts" / name
            (host / "elsewhere").mkdir(parents=True)
            make(host / "hoplite")
            os.chown(host / "elsewhere", 7400, 7400)
            with self.assertRaisesRegex(
                AssertionError,
                "/dev/shm/hoplite on this node is a link, or belongs to another user",
            ):
                self.start(name, "store", name, name)
