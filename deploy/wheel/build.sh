#!/usr/bin/env bash
# Builds and tries a wheel of the Python package for other Linux systems, and its sources: build.sh OUTPUT [TARGET].
# TARGET, such as aarch64-unknown-linux-gnu, names another architecture. That needs the standard library of Rust and the C
# compiler for it. deploy/wheel/foreign.sh tries such a wheel. The exit status is 77 if a tool is missing.
# HOPLITE_PROFILE names the Cargo profile, by default "dist". Needs Cargo, Python 3.11 or later, and PyPI.
set -euo pipefail
mkdir -p "$1"
export HOPLITE_PROFILE=${HOPLITE_PROFILE:-dist}
output=$(realpath "$1")
target=${2-}
source=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

missing() { echo "no wheel for $target: $*" >&2; exit 77; }

architecture=$(uname -m)
if [ "$target" ]; then
  architecture=${target%%-*}
  gnu=$architecture-linux-gnu
  command -v "$gnu-gcc" >/dev/null || missing "$gnu-gcc is missing (Debian: gcc-${gnu//_/-})"
  echo 'int main(void) { return 0; }' | "$gnu-gcc" -x c - -o "$work/empty-program" ||
    missing "$gnu-gcc builds no program: the C library for $architecture is missing (Debian: libc6-dev-*-cross)"
  [ -d "$(rustc --print target-libdir --target "$target")" ] || missing "run: rustup target add $target"
  variable=${target//-/_}
  export CARGO_BUILD_TARGET=$target "CARGO_TARGET_${variable^^}_LINKER=$gnu-gcc" "CC_$variable=$gnu-gcc"
  mkdir "$work/bin"
  ln -s "$(command -v "$gnu-strip")" "$work/bin/strip"
  PATH=$work/bin:$PATH
fi

"${PYTHON:-python3}" -m venv "$work/tools"
PATH=$work/tools/bin:$PATH
pip install --quiet --disable-pip-version-check -r "$source/deploy/wheel/requirements.txt"
# Builds without isolation, to use the pinned tools.
[ "$target" ] || python -m build --no-isolation --sdist --outdir "$work/sdist" "$source/python"
python -m build --no-isolation --wheel --outdir "$work/linux" "$source/python"

# The tag names the oldest C library that runs the extension and the programs. The wheel needs no other library, so none
# is bundled.
auditwheel repair --strip --wheel-dir "$work/wheel" "$work"/linux/*.whl
wheel=$(echo "$work"/wheel/*.whl)
auditwheel show "$wheel"
case $wheel in
  *-cp311-abi3-manylinux_*_"$architecture".whl) ;;
  *) echo "this is no wheel for any Linux and any Python from 3.11 on: $(basename "$wheel")" >&2; exit 1 ;;
esac
if python -m zipfile --list "$wheel" | grep -q '^hoplite\.libs/'; then
  echo "the wheel depends on libraries that systems do not all have" >&2
  exit 1
fi
abi3audit --strict --report "$wheel" >"$work/abi3.json" || { cat "$work/abi3.json" >&2; exit 1; }

if [ "$target" ]; then
  "$source/deploy/wheel/foreign.sh" "$wheel" "$architecture"
else
  # Tries the package and the programs in an empty environment.
  "${PYTHON:-python3}" -m venv --without-pip "$work/empty"
  pip --python "$work/empty/bin/python" install --quiet --disable-pip-version-check "$wheel"
  for program in hoplite hoplite-store hoplite-directory; do
    "$work/empty/bin/$program" --version
  done
  env -C "$work" "$work/empty/bin/python" "$source/deploy/wheel/check.py"
  mv "$work"/sdist/*.tar.gz "$output"
fi

mv "$wheel" "$output"
ls "$output"
