#!/usr/bin/env bash
# A guest with a kernel of its own, by emulation: the daemon in it tells disks to stand still by the real ioctls (tests/guest/init).
# What is needed is installed or unpacked (target/guest); nothing of the guest touches a disk of this machine.
set -euo pipefail
cd "$(dirname "$0")/.."

tidegate=${TIDEGATE:-${CARGO_TARGET_DIR:-target}/release/tidegate}
folder=${CARGO_TARGET_DIR:-target}/guest
mkdir -p "$folder"

as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo)
packages=()
for entry in qemu-system-x86_64:qemu-system-x86 qemu-img:qemu-utils busybox:busybox-static nbd-client:nbd-client cpio:cpio depmod:kmod; do
  command -v "${entry%%:*}" > /dev/null || packages+=("${entry##*:}")
done
if [ ${#packages[@]} -gt 0 ]; then
  echo "installing ${packages[*]}" >&2
  "${as_root[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${packages[@]}" > /dev/null
fi

# The kernel is unpacked, never installed.
if ! compgen -G "$folder/kernel/boot/vmlinuz-*" > /dev/null; then
  package=$(apt-cache depends linux-image-amd64 | awk '/Depends:/ { print $2; exit }')
  (cd "$folder" && apt-get download "$package" 2> /dev/null)
  dpkg -x "$folder/$package"_*.deb "$folder/kernel"
fi
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
timeout -s KILL 600 qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 1G -nographic -no-reboot -nic none \
  -kernel "$kernel" -initrd "$folder/initramfs.gz" -append "console=ttyS0 quiet panic=-1" \
  -device ahci,id=ahci -drive "id=disk,if=none,format=raw,file=$folder/sata.img" -device ide-hd,drive=disk,bus=ahci.0 \
  < /dev/null > "$log" 2>&1 || true
tr -d '\r' < "$log" | sed -n '/^--- /,$p'
if ! grep -q '^--- end' "$log" || grep -q '^NOT OK' "$log"; then
  echo "test-guest: not all of it holds; the whole console is in $log" >&2
  exit 1
fi
