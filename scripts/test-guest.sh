#!/usr/bin/env bash
# A guest with a kernel of its own, by emulation: the daemon in it tells disks to stand still by the real ioctls (tests/guest/init).
# What is needed is unpacked (target/guest), a few small programs are installed; nothing of the guest touches a disk of this machine.
set -euo pipefail
cd "$(dirname "$0")/.."

tidegate=${TIDEGATE:-${CARGO_TARGET_DIR:-target}/release/tidegate}
folder=${CARGO_TARGET_DIR:-target}/guest
mkdir -p "$folder"

as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo)
packages=()
for entry in busybox:busybox-static nbd-client:nbd-client cpio:cpio depmod:kmod strip:binutils; do
  command -v "${entry%%:*}" > /dev/null || packages+=("${entry##*:}")
done
if [ ${#packages[@]} -gt 0 ]; then
  echo "installing ${packages[*]}" >&2
  "${as_root[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${packages[@]}" > /dev/null
fi

# unpack FOLDER PACKAGE…: into a folder of ours. An emulator that is installed would displace other versions of its tools, and a kernel more.
unpack() {
  local into=$folder/$1
  shift
  [ -d "$into" ] && return
  rm -rf "$into.part"
  mkdir -p "$into.part/packages"
  (cd "$into.part/packages" && apt-get download "$@" > /dev/null 2>&1) || { echo "cannot download $*" >&2; exit 1; }
  for package in "$into.part/packages"/*.deb; do dpkg -x "$package" "$into.part"; done
  rm -r "$into.part/packages"
  mv "$into.part" "$into"
}
# What a package needs and this system lacks, itself included.
missing() {
  apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances "$1" |
    grep '^[a-z0-9]' | sort -u | while read -r package; do
    dpkg -s "$package" 2> /dev/null | grep -q '^Status: install ok installed' || ! apt-cache show "$package" > /dev/null 2>&1 || echo "$package"
  done
}
[ -d "$folder/kernel" ] || [ -d "$folder/qemu" ] || "${as_root[@]}" apt-get update -qq
unpack kernel "$(apt-cache depends linux-image-amd64 | awk '/Depends:/ { print $2; exit }')"
[ -d "$folder/qemu" ] || mapfile -t packages < <(missing qemu-system-x86)
unpack qemu "${packages[@]}"
qemu=$folder/qemu
libraries=$(find "$qemu" -name '*.so*' -printf '%h\n' | sort -u | paste -sd:)
kernel=$(compgen -G "$folder/kernel/boot/vmlinuz-*" | head -1)
version=${kernel##*/vmlinuz-}
depmod -b "$folder/kernel" "$version"

# An initramfs of programs, their libraries, and the modules that are wanted with those that they want.
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root"/{bin,proc,sys,dev,tmp,etc} "$root/lib/modules/$version"
cp tests/guest/init "$root/init"
chmod +x "$root/init"
cp "$(command -v busybox)" "$root/bin/"
cp "$(command -v nbd-client)" "$root/bin/"
strip -o "$root/bin/tidegate" "$tidegate"
for program in tidegate nbd-client; do
  ldd "$root/bin/$program" | grep -o '/[^ ]*' | while read -r library; do
    mkdir -p "$root$(dirname "$library")"
    cp -L "$library" "$root$library"
  done
done
for module in ahci sd_mod scsi_debug nbd; do
  modprobe -d "$folder/kernel" -S "$version" --show-depends "$module" | awk '$1 == "insmod" { print $2 }'
done | sort -u | while read -r module; do
  place=$root/lib/modules/${module##*/lib/modules/}
  mkdir -p "$(dirname "$place")"
  cp "$module" "$place"
done
cp "$folder/kernel/lib/modules/$version"/modules.{order,builtin,builtin.modinfo} "$root/lib/modules/$version/"
depmod -b "$root" "$version"
(cd "$root" && find . | cpio --quiet -o -H newc | gzip -1) > "$folder/initramfs.gz"

truncate -s 64M "$folder/sata.img"
log=$folder/guest.log
LD_LIBRARY_PATH=$libraries timeout -s KILL 600 "$qemu/usr/bin/qemu-system-x86_64" \
  -L "$qemu/usr/share/qemu" -L "$qemu/usr/share/seabios" -L /usr/share/qemu -L /usr/share/seabios -vga none \
  -accel tcg,thread=multi -cpu max -smp 2 -m 1G -nographic -no-reboot -nic none \
  -kernel "$kernel" -initrd "$folder/initramfs.gz" -append "console=ttyS0 quiet panic=-1" \
  -device ahci,id=ahci -drive "id=disk,if=none,format=raw,file=$folder/sata.img" -device ide-hd,drive=disk,bus=ahci.0 \
  < /dev/null > "$log" 2>&1 || true
tr -d '\r' < "$log" | sed -n '/^--- /,$p'
if ! grep -q '^--- end' "$log" || grep -q '^NOT OK' "$log"; then
  echo "test-guest: not all of it holds; the whole console is in $log" >&2
  exit 1
fi
