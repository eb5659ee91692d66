#!/usr/bin/env bash
# Fuzzing, guided by coverage, on the pinned compiler.
#
#   scripts/fuzz.sh                     what continuous integration runs: every target for a short time, and the canary
#   scripts/fuzz.sh TARGET [SECONDS]    one target (60 s if nothing else is said)
#   scripts/fuzz.sh all SECONDS         every target for so long
#   scripts/fuzz.sh list                the targets
#   scripts/fuzz.sh build               builds them, and is done
#
# What is found is left in fuzz/found/TARGET, where `cargo test` replays it from then on. New ground is kept in target/fuzz/corpus.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
program=$target/debug/tidegate-fuzz
# The least number of inputs in CI, for what reads bytes from the wire or from the SSD; the others take a fixed time.
runs=200000
counted=(handshake transmission superblock header map journal)
timed=(recovery engine config control)
timed_seconds=15
# No input may take longer (in seconds), nor the whole of it more memory (in MiB).
limits=(-timeout=1 -rss_limit_mb=256 -malloc_limit_mb=128 -print_final_stats=1 -len_control=0 -verbosity=0)

build() {
  RUSTC_WORKSPACE_WRAPPER=$PWD/scripts/fuzz-rustc.sh cargo build --quiet --locked --profile test -p tidegate-fuzz --features guided
}

# fuzz NAME OPTIONS…: one target until it is done; says in one line how it went. Fails if something was found.
fuzz() {
  local name=$1 log corpus=$target/fuzz/corpus/$1 found=fuzz/found/$1 dirs=()
  shift
  log=$target/fuzz/$name.log
  mkdir -p "$corpus"
  for dir in "fuzz/corpus/$name" "$found"; do [ -d "$dir" ] && dirs+=("$dir"); done
  local status=0
  TIDEGATE_FUZZ=$name "$program" "$corpus" "${dirs[@]}" "${limits[@]}" -artifact_prefix="$target/fuzz/$name-" "$@" >"$log" 2>&1 || status=$?
  local count rss
  count=$(grep -aoE 'number_of_executed_units: *[0-9]+' "$log" | grep -oE '[0-9]+' || echo 0)
  rss=$(grep -aoE 'peak_rss_mb: *[0-9]+' "$log" | grep -oE '[0-9]+' || echo 0)
  if [ "$status" -ne 0 ]; then
    [ "$name" = canary ] && return "$status"
    # libFuzzer's code for a signal from outside.
    [ "$status" -ne 72 ] || { echo "fuzz $name: stopped from outside"; return 1; }
    mkdir -p "$found"
    mv "$target/fuzz/$name-"* "$found/" 2>/dev/null || true
    printf 'fuzz %-13s FOUND, see %s and %s\n' "$name" "$found" "$log"
    grep -a -A2 -E 'panicked at|ERROR: libFuzzer' "$log" | cut -c1-300 | head -6
    return 1
  fi
  printf 'fuzz %-13s %9d inputs, %3d MiB: nothing found\n' "$name" "$count" "$rss"
  [ -z "${at_least:-}" ] || [ "$count" -ge "$at_least" ] || { echo "fuzz $name: fewer than $at_least inputs"; return 1; }
}

# The net must catch something.
canary() {
  rm -rf "$target/fuzz/corpus/canary"
  if fuzz canary -max_total_time=30 -max_len=64; then
    echo "fuzz canary: not found: this fuzzer would find nothing"
    return 1
  fi
  rm -f "$target/fuzz/canary-"*
  grep -aq 'the canary sings' "$target/fuzz/canary.log" && echo "fuzz canary        found, as it must be"
}

# Two at a time.
ci() {
  local failed=0
  canary || failed=1
  {
    for name in "${counted[@]}"; do at_least=$runs fuzz "$name" -runs=$runs || echo "$name" >>"$target/fuzz/failed"; done
  } &
  for name in "${timed[@]}"; do fuzz "$name" -max_total_time=$timed_seconds || echo "$name" >>"$target/fuzz/failed"; done
  wait
  [ ! -e "$target/fuzz/failed" ] || failed=1
  return "$failed"
}

mkdir -p "$target/fuzz"
rm -f "$target/fuzz/failed"
build
case ${1:-ci} in
  ci) ci ;;
  build) ;;
  list) "$program" ;;
  all) for name in "${counted[@]}" "${timed[@]}"; do fuzz "$name" -max_total_time="${2:-60}"; done ;;
  canary) canary ;;
  *) fuzz "$1" -max_total_time="${2:-60}" ;;
esac
