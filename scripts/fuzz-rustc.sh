#!/usr/bin/env bash
# The compiler with counters for libFuzzer. Cargo calls it as RUSTC_WORKSPACE_WRAPPER: the crates of this workspace are counted, branch
# by branch, and dependencies stay as they are in any other build. Nothing here needs a nightly compiler.
#
# Comparisons are told too where bytes are read. Not in the targets themselves, into which the engine's flows are compiled: there most of
# them are of its own numbers, and telling them takes a third of the time. The simulator is the world around a target: it is not counted.
set -euo pipefail
counters=(-C passes=sancov-module -C llvm-args=-sanitizer-coverage-level=3
  -C llvm-args=-sanitizer-coverage-inline-8bit-counters -C llvm-args=-sanitizer-coverage-pc-table)
case " $* " in
  *" --crate-name tidegate_sim "*) counters=() ;;
  *" --crate-name tidegate_fuzz "*) ;;
  *) counters+=(-C llvm-args=-sanitizer-coverage-trace-compares) ;;
esac
exec "$@" "${counters[@]}"
