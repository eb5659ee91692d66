#!/usr/bin/env bash
# timed.sh NAME COMMAND…: runs the command and says how long it took. Its exit code is the command's.
# Signals go to the command: with Ctrl-C it ends in its own way, and is still timed.
set -u
name=$1
shift
trap : INT TERM
SECONDS=0
"$@"
code=$?
printf 'make %s: %d min %02d s\n' "$name" $((SECONDS / 60)) $((SECONDS % 60)) >&2
exit "$code"
