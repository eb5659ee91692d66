#!/usr/bin/env bash
# Everything that must hold, as CI asks it. Goes on after a failure, so that one run shows all of them; the last line counts.
set -uo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
# What is built once is not worth the notes for building it again.
export CARGO_INCREMENTAL=0
passed=0
failed=0
steps=()

# step NAME COMMAND…: one thing that passes or fails. A command that counts for itself sets `counted`.
step() {
  local name=$1 started=$SECONDS counted=
  shift
  printf '\n== %s\n' "$name"
  if "$@"; then
    [ -n "$counted" ] || passed=$((passed + 1))
  else
    [ -n "$counted" ] || failed=$((failed + 1))
    name="$name (failed)"
  fi
  steps+=("$(printf '%4d s  %s' $((SECONDS - started)) "$name")")
}

# beside NAME COMMAND…: the same as a step, begun now and ended by `collect`. It gets what the others leave of the processors: half of the tests wait
# for clocks and disks. It is a process group of its own, so that all of it ends with this script.
behind=()
beside() {
  local name=$1 log
  shift
  log=$(mktemp)
  set -m
  (
    chrt --idle --pid 0 "$BASHPID" 2>/dev/null || renice -n 19 -p "$BASHPID" >/dev/null
    SECONDS=0
    "$@" >"$log" 2>&1
    status=$?
    printf '%d\n' "$SECONDS" >"$log.seconds"
    exit "$status"
  ) &
  set +m
  behind+=("$!" "$log" "$name")
}

collect() {
  local pid log name
  while [ ${#behind[@]} -gt 0 ]; do
    pid=${behind[0]} log=${behind[1]} name=${behind[2]}
    printf '\n== %s\n' "$name"
    if wait "$pid"; then
      passed=$((passed + 1))
    else
      failed=$((failed + 1))
      name="$name (failed)"
    fi
    cat "$log"
    steps+=("$(printf '%4d s  %s' "$(cat "$log.seconds" 2>/dev/null || echo 0)" "$name, beside the tests")")
    rm -f "$log" "$log.seconds"
    behind=("${behind[@]:3}")
  done
}

stop_beside() {
  while [ ${#behind[@]} -gt 0 ]; do
    kill -- "-${behind[0]}" 2>/dev/null
    rm -f "${behind[1]}" "${behind[1]}.seconds"
    behind=("${behind[@]:3}")
  done
}
trap stop_beside EXIT
# Without these a signal that ends this script would not run the line above.
trap 'exit 130' INT
trap 'exit 143' TERM

# What the tests run, so that what is begun beside them builds nothing that they use.
build() {
  local runner=(cargo nextest run --no-run --cargo-quiet)
  cargo nextest --version >/dev/null 2>&1 || runner=(cargo test --no-run --quiet)
  "${runner[@]}" --workspace --locked && cargo build --profile test --locked --quiet --bin tidegate
}

# The test runner; its counts go into ours. Whatever started this may ignore signals (nohup, or a script's background), and the daemon leaves alone
# what is ignored: tests send them.
tests() {
  local log status
  log=$(mktemp)
  if cargo nextest --version >/dev/null 2>&1; then
    env --default-signal cargo nextest run --profile full --test-threads $((2 * $(nproc) + 1)) --workspace --locked --no-fail-fast --status-level slow --final-status-level fail 2>&1 | tee "$log"
    status=$?
  else
    env --default-signal cargo test --workspace --locked --no-fail-fast 2>&1 | tee "$log"
    status=$?
  fi
  # nextest: "Summary [ 1.2s] 12 tests run: 11 passed, 1 failed, 0 skipped"; cargo: "test result: ok. 11 passed; 1 failed; …".
  local ran broke
  ran=$(grep -aE '(tests? run:|^test result:)' "$log" | grep -aoE '[0-9]+ passed' | awk '{ n += $1 } END { print n + 0 }')
  broke=$(grep -aE '(tests? run:|^test result:)' "$log" | grep -aoE '[0-9]+ (failed|timed out)' | awk '{ n += $1 } END { print n + 0 }')
  rm -f "$log"
  # A runner that failed without a failing test (it did not compile) counts as one itself.
  [ "$status" -eq 0 ] || [ "$broke" -gt 0 ] || return 1
  counted=1
  passed=$((passed + ran))
  failed=$((failed + broke))
  [ "$status" -eq 0 ]
}

# Every tenth seed is also a workload that is crashed at every point: a net with fewer recoveries than that has a hole. As the tests are
# built, with every assertion and overflow check.
swarm() {
  local report recoveries
  report=$("$target/debug/tidegate" sim swarm --seeds 2000 --ops 5000 --json) || { printf '%s\n' "$report"; return 1; }
  printf '%s\n' "$report"
  recoveries=$(grep -oE '"recoveries":[0-9]+' <<<"$report" | grep -oE '[0-9]+')
  [ "$recoveries" -ge 80000 ]
}

# Threads in every order, and what the memory model lets them read: loom in the place of the standard library's atomics.
models() {
  RUSTFLAGS="--cfg loom" cargo test --locked --quiet -p tidegate-pages --test loom --target-dir "$target/loom"
}

scripts/setup.sh || exit 1
step "format" cargo fmt --all --check
step "lints" cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
step "build" build
beside "swarm: 2,000 seeds of 5,000 operations, 80,000 recoveries" swarm
beside "models of the memory tier" models
beside "build of the fuzz targets" scripts/fuzz.sh build
step "tests" tests
collect
step "fuzz: 200,000 inputs of each target from the wire and the SSD, the others for 15 s, and the canary" scripts/fuzz.sh

printf '\n'
printf '%s\n' "${steps[@]}"
printf '\n%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" -eq 0 ]
