#!/usr/bin/env bash
# Installs what the tests run beside the program: NBD clients, file systems, a compiler. Does nothing where all of it is there.
set -euo pipefail

# Program, and the Debian package that has it.
needed=(
  nbdinfo:libnbd-bin nbdcopy:libnbd-bin nbdfuse:libnbd-bin nbdsh:python3-libnbd
  qemu-io:qemu-utils qemu-img:qemu-utils qemu-nbd:qemu-utils
  nbdkit:nbdkit fio:fio
  mkfs.ext4:e2fsprogs mkfs.xfs:xfsprogs mkfs.btrfs:btrfs-progs
  sqlite3:sqlite3 dbench:dbench
  fusermount3:fuse3 losetup:mount fstrim:util-linux
  cc:gcc c++:g++ make:make
)

packages=()
for entry in "${needed[@]}"; do
  command -v "${entry%%:*}" >/dev/null || packages+=("${entry##*:}")
done
# PostgreSQL's programs are in no PATH: they lie beside each other, version by version.
compgen -G '/usr/lib/postgresql/*/bin/pg_amcheck' >/dev/null || packages+=(postgresql)
[ ${#packages[@]} -eq 0 ] && exit 0

mapfile -t packages < <(printf '%s\n' "${packages[@]}" | sort -u)
if ! command -v apt-get >/dev/null; then
  echo "missing: ${packages[*]} (names as in Debian); install them with this system's package manager" >&2
  exit 1
fi
as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo)
echo "installing ${packages[*]}" >&2
"${as_root[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
