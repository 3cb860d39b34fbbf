#!/usr/bin/env bash
# Installs what the benchmarks compare with, and builds their workers, in target/bench. Needs root if a package is missing.
set -euo pipefail
cd "$(dirname "$0")"
built=$(realpath ../../..)/target/bench
packages=(iproute2 iperf3 gcc libc6-dev mpich libmpich-dev openmpi-bin libopenmpi-dev python3-venv)
mkdir -p "$built"

missing=()
for package in "${packages[@]}"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
    [ "$(id -u)" = 0 ] || { echo "bench: as root, run: apt-get install ${missing[*]}" >&2; exit 1; }
    apt-get update -q
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
fi

# Open MPI's wrapper, and not MPICH's, is what `mpicc` is where both are installed; so both are named in full.
mpicc.mpich -O2 -Wall -Wextra -Werror -o "$built/mpich_worker" mpi_worker.c
mpicc.openmpi -O2 -Wall -Wextra -Werror -o "$built/openmpi_worker" mpi_worker.c
gcc -O2 -Wall -Wextra -Werror -shared -fPIC -o "$built/idle.so" idle.c -ldl

# torch is measured; matplotlib draws the report; numpy is needed by both.
[ -x "$built/venv/bin/pip" ] || python3 -m venv "$built/venv"
"$built/venv/bin/pip" install --quiet --disable-pip-version-check -r requirements.txt
