#!/usr/bin/env bash
# Builds and checks the sources and a wheel of the Python package for other Linux systems: build.sh OUTPUT.
# HOPLITE_PROFILE names the Cargo profile, by default "dist". Needs Cargo, Python 3.11 or later, and PyPI.
set -euo pipefail
mkdir -p "$1"
export HOPLITE_PROFILE=${HOPLITE_PROFILE:-dist}
output=$(realpath "$1")
source=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"${PYTHON:-python3}" -m venv "$work/tools"
PATH=$work/tools/bin:$PATH
pip install --quiet --disable-pip-version-check -r "$source/deploy/wheel/requirements.txt"
# Builds without isolation, to use the pinned tools.
python -m build --no-isolation --sdist --outdir "$work/sdist" "$source/python"
python -m build --no-isolation --wheel --outdir "$work/linux" "$source/python"

# The tag names the oldest C library that runs the extension and the programs. The wheel needs no other library, so none
# is bundled.
auditwheel repair --strip --wheel-dir "$work/wheel" "$work"/linux/*.whl
wheel=$(echo "$work"/wheel/*.whl)
auditwheel show "$wheel"
case $wheel in
  *-cp311-abi3-manylinux_*) ;;
  *) echo "this is no wheel for any Linux and any Python from 3.11 on: $(basename "$wheel")" >&2; exit 1 ;;
esac
if python -m zipfile --list "$wheel" | grep -q '^hoplite\.libs/'; then
  echo "the wheel depends on libraries that systems do not all have" >&2
  exit 1
fi
abi3audit --strict --report "$wheel" >"$work/abi3.json" || { cat "$work/abi3.json" >&2; exit 1; }

# Tries the package and the programs in an empty environment.
"${PYTHON:-python3}" -m venv --without-pip "$work/empty"
pip --python "$work/empty/bin/python" install --quiet --disable-pip-version-check "$wheel"
for program in hoplite hoplite-store hoplite-directory; do
  "$work/empty/bin/$program" --version
done
env -C "$work" "$work/empty/bin/python" "$source/deploy/wheel/check.py"

mv "$work"/sdist/*.tar.gz "$wheel" "$output"
ls "$output"
