#!/bin/sh
# Runs the compiled AVX-512 kernels on a machine that need not have AVX-512, and compares every result with the scalar kernels' bits.
#
#     scripts/emulate_avx512.sh [FOLDER]      FOLDER: build and boot files (default build/emulate)
#
# Builds csrc/tests/isa_check, runs it here, then boots a Linux whose only process it is in Bochs as an Ice Lake (AVX-512 F, BW, DQ,
# VL, VNNI), and requires the results of both runs to be equal. Some minutes. Exit code 0: every case agrees.
# Needs Debian's bochs, bochs-term, grub-pc-bin, grub-common, xorriso and mtools; the kernel is a package that is only downloaded.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "${1:-$root/build/emulate}"
work=$(cd "${1:-$root/build/emulate}" && pwd)
limit_s=${LIMIT_S:-1800}

for tool in cmake python3 bochs grub-mkrescue xorriso mformat script dpkg-deb; do
  command -v "$tool" > /dev/null || {
    echo "emulate_avx512: $tool is missing; apt-get install bochs bochs-term grub-pc-bin grub-common xorriso mtools" >&2
    exit 2
  }
done

cmake -S "$root" -B "$work/build" -DTAUT_ISA_CHECK=ON > "$work/cmake.log"
cmake --build "$work/build" >> "$work/cmake.log" 2>&1 || { tail -n 40 "$work/cmake.log" >&2; exit 2; }
program=$work/build/isa_check
echo "== this machine"
"$program" | tee "$work/native.txt" || true

# Any recent kernel does; the cloud flavour is small and has its serial console built in.
if [ ! -f "$work/vmlinuz" ]; then
  package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
  (cd "$work" && rm -f linux-image-*.deb && apt-get download -q "$package" && dpkg-deb --fsys-tarfile linux-image-*.deb |
    tar -x -O --wildcards './boot/vmlinuz-*' > vmlinuz.part && mv vmlinuz.part vmlinuz)
fi

mkdir -p "$work/iso/boot/grub"
cp "$work/vmlinuz" "$work/iso/boot/vmlinuz"
python3 - "$program" "$work/iso/boot/initrd" << 'EOF'
import sys

def entry(name, mode, data=b"", device=(0, 0)):  # cpio newc
    fields = (entry.inode, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(name) + 1, 0)
    entry.inode += 1
    head = b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
    return head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4)

entry.inode = 1
program = open(sys.argv[1], "rb").read()
parts = (entry("dev", 0o40755), entry("dev/console", 0o20600, device=(5, 1)), entry("init", 0o100755, program), entry("TRAILER!!!", 0))
open(sys.argv[2], "wb").write(b"".join(parts))
EOF

# clearcpuid: what this Bochs announces but describes wrongly to Linux (layout of the saved state), and fsrm, which Linux itself
# gets wrong where fast strings are off. None of it touches what the kernels use.
cat > "$work/iso/boot/grub/grub.cfg" << 'EOF'
set timeout=0
serial --unit=0 --speed=115200
terminal_output serial
linux /boot/vmlinuz console=ttyS0,115200 loglevel=1 mitigations=off panic=-1 lsm=capability clearcpuid=pku,xsaves,xsavec,fsrm
initrd /boot/initrd
boot
EOF
grub-mkrescue -o "$work/boot.iso" "$work/iso" > "$work/iso.log" 2>&1

# update_freq: every update of the screen goes to a terminal that nobody reads, and that blocks once it is full.
cat > "$work/bochsrc" << EOF
display_library: term
cpu: model=corei7_icelake_u, count=1, ips=100000000, reset_on_triple_fault=0
megs: 512
vga: extension=vbe, update_freq=1
romimage: file=/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=/usr/share/bochs/VGABIOS-lgpl-latest
ata0-master: type=cdrom, path=$work/boot.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=$work/serial.txt
log: $work/bochs.log
panic: action=fatal
error: action=ignore
info: action=report
clock: sync=none
EOF
echo c > "$work/continue"  # Debian's Bochs starts in its debugger

echo "== emulated machine"
rm -f "$work/serial.txt"
# The terminal interface wants a terminal. Bochs ends when the program switches the machine off.
timeout -k 5 "$limit_s" nice -n 10 script -qec "TERM=linux bochs -q -f '$work/bochsrc' -rc '$work/continue'" /dev/null \
  < /dev/null > "$work/bochs.txt" 2>&1 || true
tr -d '\r' < "$work/serial.txt" | sed 's/^\x1b\[H\x1b\[J\x1b\[1;1H//' > "$work/emulated.txt"
cat "$work/emulated.txt"

grep -q '^isas:.* avx512' "$work/emulated.txt" || { echo "emulate_avx512: the emulated machine did not run AVX-512" >&2; exit 1; }
grep -q '^isa_check: exit 0' "$work/emulated.txt" || { echo "emulate_avx512: mismatches, or no end within $limit_s s" >&2; exit 1; }
for run in native emulated; do
  sed -n 's/^\([a-z_0-9]* *digest [0-9a-f]*\),.*/\1/p' "$work/$run.txt" > "$work/$run.digests"
done
cmp "$work/native.digests" "$work/emulated.digests" || {
  echo "emulate_avx512: the emulated machine's scalar results are not this machine's" >&2
  exit 1
}
echo "emulate_avx512: AVX-512 gives the scalar bits in every case, and the emulated machine gives this machine's"
