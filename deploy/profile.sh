#!/usr/bin/env bash
# Runs instrumented programs under `hoplite bench`, mostly with small objects, and writes the profile for the compiler:
# profile.sh OUT. Or checks that a program was built with the counts of its functions: profile.sh --check PROFILE PROGRAM.
# Needs llvm-profdata of the compiler's LLVM, and gets it from rustup if it is missing.
set -euo pipefail
check=
if [ "${1-}" = --check ]; then
  check=$(realpath "$3")
  shift
fi
out=$(realpath -m "$1")
cd "$(dirname "$0")/.."
built=$PWD/target/profile
counts=$built/counts

host=$(rustc -vV | sed -n 's/^host: //p')
profdata=$(rustc --print sysroot)/lib/rustlib/$host/bin/llvm-profdata
if [ ! -x "$profdata" ] && ! rustup component add llvm-tools; then
  echo "no llvm-profdata of the compiler's LLVM: install rustup's llvm-tools, or build without it: make dist PROFILE=" >&2
  exit 1
fi

if [ "$check" ]; then
  # The compiler says nothing if it finds no counts for a function.
  found=$("$profdata" show --all-functions "$out" | sed -n 's/^  \(_[^ ]*hoplite_core[^ ]*\):$/\1/p' | sort -u |
    comm -12 - <(nm "$check" | awk '{print $3}' | sort -u) | wc -l)
  if [ "$found" = 0 ]; then
    echo "$out has no counts of the functions of $check, since another compiler made it, say: run make profile" >&2
    exit 1
  fi
  exit
fi

# Uses the same Cargo profile as `make dist`, because counts are found by function names, which contain the profile.
RUSTFLAGS="${RUSTFLAGS-} -Cprofile-generate=$counts" CARGO_TARGET_DIR=$built \
  "${CARGO:-cargo}" build --profile dist -p hoplite-cli -p hoplite-store -p hoplite-directory

rm -rf "$counts"
measure() {
  echo "counting: hoplite bench $*"
  "$built/dist/hoplite" bench "$@" >/dev/null
}
# Few large transfers, because their loops run so often that the compiler would treat other code as rare.
for size in 1KiB 32KiB; do
  measure broadcast --size "$size" --receivers 3,7,15 --repetitions 60
  measure reduce --size "$size" --nodes 4,8,16 --repetitions 60
done
measure broadcast --size 1MiB --receivers 7 --repetitions 5
measure reduce --size 1MiB --nodes 8 --repetitions 5
measure p2p --size 1MiB --samples 2000
measure local --size 1MiB --samples 2000 --cold-samples 0
# Rare but slow code: each kernel of a reduce, and the copy that bypasses the caches.
measure kernels --size 64KiB --repetitions 2
measure local --size 32MiB --samples 10 --cold-samples 0 --repetitions 2
"$profdata" merge --output "$out" "$counts"
