#!/usr/bin/env bash
# Installs what the benchmarks compare with, and builds their workers, in target/bench. Needs root if a package is missing.
#
# What cannot be had is named and left out: the benchmarks then say so too, and measure the rest.
set -uo pipefail
cd "$(dirname "$0")" || exit
built=$(realpath ../../..)/target/bench
packages=(iproute2 iperf3 gcc libc6-dev mpich libmpich-dev openmpi-bin libopenmpi-dev python3-venv)
mkdir -p "$built" || exit

without() { echo "bench: without $*" >&2; }

missing=()
for package in "${packages[@]}"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" != 0 ]; then
        without "${missing[*]}: as root, run: apt-get install ${missing[*]}"
    elif ! { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"; }; then
        without "some of ${missing[*]}: apt-get failed"
    fi
fi

# Open MPI's wrapper, and not MPICH's, is what `mpicc` is where both are installed; so both are named in full.
for mpi in mpich openmpi; do
    "mpicc.$mpi" -O2 -Wall -Wextra -Werror -o "$built/${mpi}_worker" mpi_worker.c || without "the worker of $mpi"
done
gcc -O2 -Wall -Wextra -Werror -shared -fPIC -o "$built/idle.so" idle.c -ldl || without "idle.so, which both MPIs need"

# torch and Ray are measured; matplotlib draws the report; numpy is needed by all. One by one, so that one that fails is alone.
[ -x "$built/venv/bin/pip" ] || python3 -m venv "$built/venv" || without "a Python environment for torch, Ray and the plots"
while read -r requirement; do
    "$built/venv/bin/pip" install --quiet --disable-pip-version-check -c requirements.txt "$requirement" ||
        without "$requirement"
done <requirements.txt
