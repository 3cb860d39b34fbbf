#!/usr/bin/env bash
# Tries a wheel for another architecture: foreign.sh WHEEL ARCHITECTURE. qemu-user runs Debian's Python of that
# architecture, which is fetched and not installed, with the wheel and numpy. Without qemu-user, or that Python, the wheel
# is not tried.
set -euo pipefail
wheel=$(realpath "$1")
architecture=$2
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

untried() { echo "not tried: $(basename "$wheel"): $*" >&2; exit 0; }

emulator=$(command -v "qemu-$architecture") || untried "qemu-$architecture is missing (Debian: qemu-user)"
command -v apt-get >/dev/null || untried "apt-get is missing, which fetches Python for $architecture"
case $architecture in
  aarch64) debian=arm64 ;;
  x86_64) debian=amd64 ;;
  *) debian=$architecture ;;
esac

mkdir -p "$work"/apt/{lists,archives}/partial "$work/root"
touch "$work/apt/status"
export APT_CONFIG=$work/apt.conf
cat >"$APT_CONFIG" <<END
APT::Architecture "$debian";
#clear APT::Architectures;
APT::Architectures { "$debian"; };
APT::Sandbox::User "root";
Debug::NoLocking "true";
Dir::State "$work/apt";
Dir::State::status "$work/apt/status";
Dir::Cache "$work/apt";
END
{ apt-get update -qq && apt-get install --download-only -y -qq --no-install-recommends python3 libstdc++6 >/dev/null; } ||
  untried "apt-get cannot fetch Python for $architecture"
find "$work/apt/archives" -name '*.deb' -exec dpkg-deb -x {} "$work/root" \;

python=$(realpath "$work/root/usr/bin/python3")
loader=$(find "$work/root" -name 'ld-linux*' -type f -print -quit)
[ "$loader" ] || untried "its C library has no loader"
libraries=$work/root/lib/$architecture-linux-gnu:$work/root/usr/lib/$architecture-linux-gnu
# The libraries are named, since qemu's own option for another root would also redirect paths such as /tmp.
emulated=("$emulator" "$loader" --library-path "$libraries")
platforms=()
for platform in "$(basename "$wheel" .whl | sed 's/.*-abi3-//')" "manylinux_2_28_$architecture" "manylinux2014_$architecture"; do
  platforms+=(--platform "$platform")
done
pip install --quiet --disable-pip-version-check --root-user-action=ignore --only-binary=:all: \
  "${platforms[@]}" --python-version "${python##*python}" --target "$work/site-packages" "$wheel"
mkdir "$work/programs"
for program in hoplite hoplite-store hoplite-directory; do
  printf '#!/bin/sh\nexec%s "$@"\n' "$(printf ' "%s"' "${emulated[@]}" "$work/site-packages/hoplite/_bin/$program")" \
    >"$work/programs/$program"
  chmod 0755 "$work/programs/$program"
  "$work/programs/$program" --version
done
env -C "$work" HOPLITE_BINARIES="$work/programs" PYTHONHOME="$work/root/usr" PYTHONPATH="$work/site-packages" \
  "${emulated[@]}" "$python" "$here/check.py"
