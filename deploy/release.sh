#!/usr/bin/env bash
# Builds all packages of one version into target/release-VERSION, with their checksums: release.sh VERSION.
# With --check, only compares the versions in files: release.sh --check [VERSION]. See docs/dev/release.md.
# HOPLITE_PROFILE names the Cargo profile, by default "dist"; "dev" builds quickly, to test this script.
set -euo pipefail
cd "$(dirname "$0")/.."
profile=${HOPLITE_PROFILE:-dist}
# These crates are useful only inside this repository.
unpublished=(hoplite-python hoplite-sim hoplite-tests)

check() {
  "${PYTHON:-python3}" - "$@" <<'END'
import re
import sys
import tomllib
from pathlib import Path

def toml(path):
    return tomllib.loads(Path(path).read_text())

cargo, chart = toml("Cargo.toml")["workspace"], Path("deploy/helm/hoplite/Chart.yaml").read_text()
version = sys.argv[1] if len(sys.argv) > 1 else cargo["package"]["version"]
named = {"Cargo.toml, [workspace.package]": cargo["package"]["version"]}
for crate, where in cargo["dependencies"].items():
    if "path" in where:
        named[f"Cargo.toml, the dependency {crate}"] = where.get("version")
members = {f"{member}/Cargo.toml": toml(f"{member}/Cargo.toml")["package"] for member in cargo["members"]}
locked = {package["name"]: package["version"] for package in toml("Cargo.lock")["package"] if "source" not in package}
for path, package in members.items():
    own = package["version"]
    named[path] = version if own == {"workspace": True} and cargo["package"]["version"] == version else own
    named[f"Cargo.lock, {package['name']}"] = locked.get(package["name"])
python = toml("python/pyproject.toml")["project"]
# maturin takes the version from python/Cargo.toml.
named["python/pyproject.toml"] = python.get("version") if "version" not in python.get("dynamic", []) else version
for key in ("version", "appVersion"):
    found = re.search(rf'^{key}: "?([^"\n]*)"?$', chart, re.MULTILINE)
    named[f"deploy/helm/hoplite/Chart.yaml, {key}"] = found and found[1]
sections = re.findall(r"^## (\S+)", Path("CHANGELOG.md").read_text(), re.MULTILINE)
accepted = [version] if len(sys.argv) > 1 else [version, "Unreleased"]
newest = next(iter(sections), None)
named["CHANGELOG.md, the newest section"] = version if newest in accepted else newest
wrong = [f"{where}: {said}" for where, said in named.items() if said != version]
if wrong:
    sys.exit("\n".join([f"not of version {version}:", *wrong]))
print(f"{len(named)} places name version {version}")
END
}

without() { echo "release: without $*" >&2; }

build_image() {
  local docker file=$1/hoplite-image-$version-$(uname -m).tar
  for docker in docker buildah podman; do
    "$docker" info >/dev/null 2>&1 || continue
    "$docker" build -f deploy/docker/Dockerfile -t "hoplite:$version" .
    case $docker in
      buildah) buildah push "hoplite:$version" "docker-archive:$file:hoplite:$version" ;;
      *) "$docker" save -o "$file" "hoplite:$version" ;;
    esac
    gzip -9n "$file"
    return
  done
  without "the image: none of docker, buildah and podman works here"
}

if [ "${1-}" = --check ]; then
  check "${@:2}"
  exit
fi
version=${1:?release.sh VERSION, or release.sh --check [VERSION]}
check "$version"
if [ "$(git status --porcelain)" ] && [ "$profile" = dist ]; then
  echo "commit or remove the changes first: a release is built from a commit" >&2
  exit 1
fi
time=$(git log -1 --format=%ct)
output=target/release-$version
work=$(mktemp -d -p target)
trap 'rm -rf "$work"' EXIT

if [ "$profile" = dist ]; then
  make dist
  binaries=target/dist
else
  "${CARGO:-cargo}" build --locked --profile "$profile" -p hoplite-cli -p hoplite-store -p hoplite-directory
  binaries=target/$([ "$profile" = dev ] && echo debug || echo "$profile")
fi
SOURCE_DATE_EPOCH=$time deploy/debian/build.sh "$binaries" "$work"
HOPLITE_PROFILE=$profile deploy/wheel/build.sh "$work"
other=$([ "$(uname -m)" = aarch64 ] && echo x86_64 || echo aarch64)-unknown-linux-gnu
status=0
HOPLITE_PROFILE=$profile deploy/wheel/build.sh "$work" "$other" || status=$?
case $status in
  0) ;;
  77) without "the wheel for $other" ;;
  *) exit "$status" ;;
esac
# Cargo builds each crate from its package, which finds missing files.
rm -rf target/package
"${CARGO:-cargo}" package --locked --workspace "${unpublished[@]/#/--exclude=}" $([ "$profile" = dist ] || echo --no-verify --allow-dirty)
mv target/package/*-"$version".crate "$work"
# An archive of the chart, as `helm package` makes it.
tar --create --gzip --directory deploy/helm --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$time" \
  --file "$work/hoplite-$version.tgz" hoplite
build_image "$work"

(cd "$work" && sha256sum -- * >SHA256SUMS)
chmod 0755 "$work"
rm -rf "$output"
mv "$work" "$output"
cat "$output/SHA256SUMS"
echo "release: all of version $version is in $output"
