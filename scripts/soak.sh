#!/usr/bin/env bash
# The nets of `make test`, wider: seeds that nobody has run yet, corruptions by the million, fuzzing for hours, kills of the real daemon by
# the thousand, clients that come and go by the hundred thousand, databases and file systems under kills for hours. Stops at the first catch.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
seeds=${SEEDS:-100000}
wide=${WIDE:-850}
refusing=${REFUSING:-20000}
failing=${FAILING:-20000}
first=${FIRST:-$(date +%s)000000}
kills=${KILLS:-5000}
connections=${CONNECTIONS:-100000}
rounds=${ROUNDS:-60}
corruptions=${CORRUPTIONS:-1000000}
fuzz=${FUZZ:-1800}
tidegate=${CARGO_TARGET_DIR:-target}/release/tidegate
real() { cargo test --release --locked --test real -- --nocapture --test-threads=1 "$@"; }

echo "soak: seeds from $first, $wide wide ones, $refusing with an origin that refuses much," \
  "$failing with an SSD that fails, $corruptions corruptions," \
  "$fuzz s of each fuzz target, $kills kills, $connections connections," \
  "$rounds rounds of crashes (again with FIRST=$first)"
"$tidegate" sim swarm --seeds "$seeds" --ops 5000 --first-seed "$first"
"$tidegate" sim swarm --profile wide --seeds "$wide" --ops 12500 --first-seed "$first"
"$tidegate" sim swarm --profile refusing --seeds "$refusing" --ops 5000 --first-seed "$first"
"$tidegate" sim swarm --profile failing --seeds "$failing" --ops 5000 --first-seed "$first"
"$tidegate" sim run wa
"$tidegate" sim run tail
"$tidegate" sim run cliff
"$tidegate" sim rot --corruptions "$corruptions" --first-seed "$first"
scripts/fuzz.sh all "$fuzz"
TIDEGATE_OPERATIONS=20000000 real linearizable::
TIDEGATE_CONNECTIONS=$connections real abuse::
TIDEGATE_ROUNDS=$rounds real databases:: file_systems:: exerciser::
TIDEGATE_KILLS=$kills real kill:: cause::
