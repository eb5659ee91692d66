#!/usr/bin/env bash
# The nets of `make test`, wider: seeds that nobody has run yet, and kills of the real daemon by the thousand. Stops at the first catch.
set -euo pipefail
cd "$(dirname "$0")/.."

seeds=${SEEDS:-100000}
first=${FIRST:-$(date +%s)000000}
kills=${KILLS:-5000}
echo "soak: seeds from $first, $kills kills (again with FIRST=$first)"
"${CARGO_TARGET_DIR:-target}/release/tidegate" sim swarm --seeds "$seeds" --ops 5000 --first-seed "$first"
TIDEGATE_KILLS=$kills cargo test --release --locked --test real -- --nocapture kill::
