#!/bin/bash
# Runs the tests of memory placement on an emulated machine of two NUMA nodes with two cores each.
#   two_nodes.sh BUILD_FOLDER TEST_BINARY:SUITE...
# Needs qemu-system-x86_64, busybox, cpio and a kernel under /boot, all of Debian; without one of
# them it prints "SKIPPED:" and which.
set -euo pipefail

build=$1
shift
skip() {
  echo "SKIPPED: $1"
  exit 0
}
for command in qemu-system-x86_64 busybox cpio gzip; do
  command -v "$command" > /dev/null || skip "$command not found"
done
kernel=$(find /boot -maxdepth 1 -name 'vmlinuz-*' -readable 2> /dev/null | sort | tail -n 1)
[[ -n $kernel ]] || skip "no readable kernel /boot/vmlinuz-*"

folder=$(mktemp -d "$build/tests/qemu/two_nodes.XXXXXX")
trap 'rm -rf "$folder"' EXIT
root=$folder/root
mkdir -p "$root"/{bin,proc,sys,dev,tmp}
cp "$(command -v busybox)" "$root/bin/busybox"
ldd "$root/bin/busybox" 2> /dev/null | grep -q '=>' && skip "busybox is not static (Debian: busybox-static)"

# add FILE: it and the libraries that it needs, at their own paths.
add() {
  local file
  for file in "$1" $(ldd "$1" | grep -o '/[^ )]*'); do
    [[ -e $root$file ]] && continue
    mkdir -p "$root$(dirname "$file")"
    cp -L "$file" "$root$file"
  done
}
for plugin in "$build"/plugins/*.so; do add "$plugin"; done
{
  echo '#!/bin/busybox sh'
  echo 'export PATH=/bin KVASIR_TEST_EMULATED=1 KVASIR_TEST_FEW_CASES=1'
  echo '/bin/busybox mount -t proc proc /proc; /bin/busybox mount -t sysfs sys /sys'
  echo '/bin/busybox mount -t devtmpfs dev /dev; /bin/busybox mount -t tmpfs tmp /tmp'
  for test in "$@"; do
    add "${test%%:*}"
    echo "cd $build && '${test%%:*}' --no-colors --test-suite='${test#*:}' && echo TWO_NODES_PASSED"
  done
  echo '/bin/busybox poweroff -f'
} > "$root/init"
chmod +x "$root/init"
(cd "$root" && find . | cpio --quiet -o -H newc | gzip -1) > "$folder/initramfs"

# NUMA balancing would move pages to their readers where emulation is slow.
timeout "${KVASIR_TEST_QEMU_SECONDS:-900}" qemu-system-x86_64 -machine q35 -accel tcg,thread=multi -cpu max \
  -m 3G -smp 4,sockets=2,cores=2 -nographic -no-reboot -nodefaults -serial stdio \
  -object memory-backend-ram,id=m0,size=1536M -object memory-backend-ram,id=m1,size=1536M \
  -numa node,nodeid=0,cpus=0-1,memdev=m0 -numa node,nodeid=1,cpus=2-3,memdev=m1 \
  -kernel "$kernel" -initrd "$folder/initramfs" -append 'console=ttyS0 quiet panic=-1 numa_balancing=disable' \
  < /dev/null > "$folder/out" 2>&1 || true
grep -v '^$' "$folder/out" | tail -n 60
passed=$(grep -c TWO_NODES_PASSED "$folder/out" || true)
if grep -q 'SKIPPED: memory cannot be placed' "$folder/out"; then
  echo "the emulated machine has no second node"
  exit 1
fi
[[ $passed == "$#" ]] || { echo "$passed of $# suites passed"; exit 1; }
