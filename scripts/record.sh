#!/usr/bin/env bash
# What real file systems ask of a disk: ext4, XFS and btrfs of this machine on a volume that records (tidegate up --record), under three
# kinds of work, each for SECONDS_EACH. The recordings lie in target/traces: FS-WORK.tgtrace, for `tidegate sim` (format "tidegate").
#   fileserver  dbench: many clients create, write, read and delete files
#   mail        small files that are written and flushed one by one
#   web         small files that are read, now and then, and a log that is written
set -euo pipefail
cd "$(dirname "$0")/.."

tidegate=$(realpath "${TIDEGATE:-${CARGO_TARGET_DIR:-target}/release/tidegate}")
traces=${CARGO_TARGET_DIR:-target}/traces
each=${SECONDS_EACH:-60}
mkdir -p "$traces"
folder=$(mktemp -d)
loop= fuse= daemon=
down() {
  mountpoint -q "$folder/at" && umount "$folder/at"
  [ -z "$loop" ] || losetup --detach "$loop"
  [ -z "$fuse" ] || { fusermount3 -u "$folder/export" || true; wait "$fuse" || true; }
  [ -z "$daemon" ] || { kill "$daemon" && wait "$daemon" || true; }
  loop= fuse= daemon=
}
trap 'down; rm -rf "$folder"' EXIT
mkdir "$folder/at" "$folder/export"

work() {
  case $1 in
    fileserver) dbench -D "$folder/at" -t "$each" 4 > /dev/null ;;
    mail) fio --name=mail --directory="$folder/at" --rw=randwrite --bs=4k --fsync=1 --nrfiles=500 --filesize=16k --numjobs=4 \
      --thinktime=20ms --runtime="$each" --time_based --output=/dev/null ;;
    web) fio --directory="$folder/at" --output=/dev/null --runtime="$each" --time_based \
      --name=pages --rw=randread --bs=16k --nrfiles=1000 --filesize=16k --numjobs=2 --thinktime=50ms --invalidate=1 \
      --name=log --rw=write --bs=4k --size=16m --thinktime=20ms ;;
  esac
}

for fs in ext4 xfs btrfs; do
  for kind in fileserver mail web; do
    trace=$traces/$fs-$kind.tgtrace
    [ -e "$trace" ] && { echo "$trace is there already"; continue; }
    rm -rf "$folder/volume"
    "$tidegate" create --dir "$folder/volume" --origin-size 2GiB --cache-size 512MiB > /dev/null
    "$tidegate" up --dir "$folder/volume" --record "$trace.part" > "$folder/said" 2>&1 &
    daemon=$!
    for _ in $(seq 100); do grep -q '^ready:' "$folder/said" && break; sleep 0.1; done
    nbdfuse "$folder/export" --unix "$folder/volume/nbd.sock" &
    fuse=$!
    for _ in $(seq 100); do [ -f "$folder/export/nbd" ] && break; sleep 0.1; done
    loop=$(losetup --find --show --direct-io=on "$folder/export/nbd")
    "mkfs.$fs" -q "$loop" > /dev/null 2>&1
    mount "$loop" "$folder/at"
    work "$kind"
    down
    mv "$trace.part" "$trace"
    echo "$trace: $((($(stat -c %s "$trace") - 32) / 24)) requests"
  done
done
