#!/usr/bin/env bash
# Builds the fuzz targets and runs all of them at once, each for $FUZZ_SECONDS (default: 20). With stable Rust: the
# instrumentation is what cargo-fuzz asks for with `--sanitizer none`. With --build, it only builds them.
#
#   FUZZ_SECONDS   how long
#   FUZZ_TARGETS   which ones, separated by spaces; default: all
#   FUZZ_CORPUS    a directory in which inputs that reach new code are kept, and from which the next run goes on
#   FUZZ_JOBS      how many compilers at once
#   HOPLITE_SEED   where the random numbers start
#
# Exits with an error if a target crashes, and says which input made it crash.
set -euo pipefail
cd "$(dirname "$0")"

root=$(cd ../.. && pwd)
seconds=${FUZZ_SECONDS:-20}
# libFuzzer's seeds have 32 bits, and zero means that it chooses one.
seed=$((${HOPLITE_SEED:-RANDOM * 32768 + RANDOM} & 0xffffffff))
[ "$seed" -ne 0 ] || seed=4294967295
targets=(${FUZZ_TARGETS:-local_request local_response store_batch shard_batch data_frame lanes page_question shard_machine node_machine session_machine})
host=$(rustc -vV | sed -n 's/^host: //p')
output=$root/target/fuzz
binaries=$output/$host/release

# Without a target triple the flags would apply to build scripts too.
flags="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
  -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing"
RUSTFLAGS=$(echo $flags) CARGO_TARGET_DIR=$output \
  "${CARGO:-cargo}" build --release --target "$host" ${FUZZ_JOBS:+-j "$FUZZ_JOBS"}
[ "${1-}" != --build ] || exit 0

echo "fuzzing ${#targets[@]} targets for $seconds s, HOPLITE_SEED=$seed"
work=$(mktemp -d)
pids=()
# Nothing of this goes on when the script ends, however it ends.
trap 'kill "${pids[@]}" 2>/dev/null || true; wait; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

for target in "${targets[@]}"; do
  corpus=${FUZZ_CORPUS:-$work/corpus}/$target
  mkdir -p "$corpus" "$output/artifacts/$target"
  case $target in
    # Long sequences of events from the start, since short ones find little.
    *_machine) shape=(-max_len=1024 -len_control=0) ;;
    *) shape=(-max_len=4096 -use_value_profile=1) ;;
  esac
  FUZZ_SEEDS=$corpus "$binaries/$target" "$corpus" -seed="$seed" -max_total_time="$seconds" "${shape[@]}" \
    -rss_limit_mb=1024 -malloc_limit_mb=256 -timeout=25 -print_final_stats=1 \
    -artifact_prefix="$output/artifacts/$target/" >"$work/$target.log" 2>&1 &
  pids+=($!)
done

failed=()
for index in "${!targets[@]}"; do
  target=${targets[$index]}
  if wait "${pids[$index]}"; then
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$work/$target.log")
    coverage=$(sed -n 's/.*cov: \([0-9]*\).*/\1/p' "$work/$target.log" | tail -n 1)
    echo "$target: ${runs:-?} inputs, ${coverage:-?} edges of the code reached"
  else
    failed+=("$target")
    # The panic, or whatever else there is.
    { sed -n '/panicked at/,$p' "$work/$target.log" | head -n 40; } || true
    tail -n 12 "$work/$target.log"
    input=$(sed -n 's/.*Test unit written to //p' "$work/$target.log" | tail -n 1)
    echo "$target FAILED with HOPLITE_SEED=$seed"
    if [ -n "$input" ]; then
      echo "  the input is $input; to repeat: $binaries/$target $input"
    fi
  fi
done
pids=()

if [ ${#failed[@]} -gt 0 ]; then
  echo "failed: ${failed[*]}"
  exit 1
fi
