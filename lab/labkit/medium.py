"""PCs that are started from a medium of `packaging/medium/make`, a virtual USB key, beside disks of their owner's.

Each scenario returns facts or raises LabError; `lab/key-test` runs them, tests/tests/medium.rs asserts.
"""

import os
import re
import shutil

from . import LAB, TOP, LabError, owner, pc
from .golden.packages import GUEST_FILES
from .guest import OVMF, Guest
from .shell import read_text, run, wait_until

MEMORY = 512
"""MiB of the PC's memory: half of it must hold the unpacked initial RAM disk, some 130 MiB, beside UEFI."""

WRITTEN = 544
"""MiB that are written: more than the PC's memory."""

BOOT = 2 << 20
"""Byte at which the key's partition with its kernel starts."""

SECURE_BOOT = "od -An -tu1 -j4 -N1 /sys/firmware/efi/efivars/SecureBoot-* 2>/dev/null | tr -d ' '; true"
"""Tells whether the firmware checks signatures; nothing where it is a BIOS."""

SLEEPER = "HibernateLocation-8cf2644b-4b0b-428f-9387-6d876050dc67"
"""The variable by which systemd tells the firmware where a system is stored."""

PATIENCE = 600
"""Seconds in which a PC starts; its processor may be emulated, on a busy machine."""


class Started(Guest):
    """A PC with a USB key and disks of its owner's on a SATA controller.

    `key` and the `disks` are files; the directory `kernel` has that of the key. `uefi` has it start by UEFI with
    Secure Boot, else it has a BIOS. `throttle` are QEMU's words for how slow the key is, and `more` further keys, as
    slow together with it. The key is not written when it is a `snapshot`. `variables` is a file with those of a UEFI
    that was used before.
    """

    def __init__(self, kernel, key, disks, *, name="pc", uefi=False, throttle="", more=(), snapshot=True, memory=MEMORY,
                 variables=None):
        self.variables = variables
        super().__init__(kernel, None, name=name, memory=memory, uefi="key" if uefi else None)
        self.command += ["-device", "qemu-xhci,id=usb", "-device", "ich9-ahci,id=sata"]
        slow = f",{throttle},throttling.group=key" if throttle else ""
        for number, path in enumerate((key, *more)):
            temporary = ",snapshot=on" if snapshot and path == key else ""
            self.command += ["-drive", f"if=none,id=key{number},format=raw,file={path}{temporary}{slow}",
                             "-device", f"usb-storage,bus=usb.0,drive=key{number},removable=on,"
                                        f"bootindex={number + 1}"]
        for number, path in enumerate(disks):
            self.command += ["-drive", f"if=none,id=disk{number},format=raw,file={path}",
                             "-device", f"ide-hd,bus=sata.{number},drive=disk{number},rotation_rate=1"]

    def _uefi(self, way):
        """OVMF that starts only what Microsoft has signed, which is what PCs are sold with."""
        try:
            shutil.copy(self.variables or f"{OVMF}/OVMF_VARS_4M.ms.fd", self._path("settings"))
        except FileNotFoundError as e:
            raise LabError("UEFI for virtual machines is not installed; run scripts/setup netboot") from e
        flash = "if=pflash,format=raw,unit"
        return ["-machine", "q35,smm=on", "-global", "driver=cfi.pflash01,property=secure,value=on",
                "-drive", f"{flash}=0,readonly=on,file={OVMF}/OVMF_CODE_4M.secboot.fd",
                "-drive", f"{flash}=1,file={self._path('settings')}"]

    def keep_variables(self, path):
        """Copies the firmware's variables."""
        shutil.copy(self._path("settings"), path)

    def said(self):
        """What the medium said on the serial console."""
        return re.findall(r"^(?:\S+ login: )?sojourn: (.*?)\r?$", read_text(self.console), re.M)

    def steps(self):
        """Seconds since the kernel started at which each step of the start was over."""
        text = self.execute("paste -sd' ' /run/sojourn/steps")["note"].split()
        return dict(zip(text[::2], map(float, text[1::2]), strict=True))

    def ready(self, timeout=PATIENCE):
        """Waits until the system is up; returns the seconds since the PC was switched on."""
        return super().ready(timeout)

    def poweroff(self, timeout=240):
        """Switches the PC off in an orderly way; what the medium said meanwhile."""
        before = len(self.said())
        super().poweroff(timeout)
        return self.said()[before:]


class Lab:
    """A medium with the laboratory's agent on it, and a place for PCs' disks."""

    def __init__(self, sojourn, work, say=lambda text: None):
        self.work, self.say = work, say
        files = os.path.join(work, "files")
        for source, target in GUEST_FILES.items():
            os.makedirs(os.path.dirname(os.path.join(files, target)), exist_ok=True)
            shutil.copy(os.path.join(LAB, "guest", source), os.path.join(files, target))
        wants = os.path.join(files, "etc/systemd/system/multi-user.target.wants")
        os.makedirs(wants)
        os.symlink("/etc/systemd/system/lab-agent.service", os.path.join(wants, "lab-agent.service"))
        self.files, self.sojourn = files, sojourn
        self.key = self.make("key.img")
        run(["mcopy", "-n", "-i", f"{self.key}@@{BOOT}", "::/sojourn/vmlinuz", work])

    def make(self, name, *options):
        """A medium, by the same command as people's."""
        path = os.path.join(self.work, name)
        self.say(f"making {name}")
        make = os.path.join(TOP, "packaging/medium/make")
        run([make, path, "--sojourn", self.sojourn, "--add", self.files, *options])
        return path

    def pc(self, name):
        """A PC's disk, and the hash of all that is not free there."""
        self.say(f"making the disk of {name}")
        disk = pc.make(os.path.join(self.work, f"{name}.raw"))
        return disk, owner.kept_hash(disk.path, disk.free)

    def start(self, disks, **options):
        """A PC that is started from the key."""
        self.say(f"starting {options.get('name', 'a PC')} by {'UEFI' if options.get('uefi') else 'BIOS'}")
        key = options.pop("key", self.key)
        return Started(self.work, key, disks, **options)


def must(condition, what):
    """Fails with what was to be so."""
    if not condition:
        raise LabError(what)


def untouched(disk, kept):
    """Fails unless a PC's disk is as it was, free blocks aside, and its file systems are clean."""
    must(owner.kept_hash(disk.path, disk.free) == kept, "bytes that were not free have changed")
    pc.check(disk)


def fill(guest, directory, mib):
    """Writes so much of what cannot be compressed, in files of 8 MiB that differ."""
    guest.execute("head -c 8M /dev/urandom > /run/pattern")
    guest.execute(f"mkdir -p {directory} && for i in $(seq {mib // 8}); do "
                  f"{{ echo $i; cat /run/pattern; }} > {directory}/$i || exit 1; done; sync", timeout=PATIENCE)


def compare(guest, directory, mib):
    """Reads that again, from the disk."""
    guest.execute(f"echo 3 > /proc/sys/vm/drop_caches; for i in $(seq {mib // 8}); do "
                  f"{{ echo $i; cat /run/pattern; }} | cmp - {directory}/$i || exit 1; done", timeout=PATIENCE)


def borrows(lab, uefi, last=lambda guest: None):
    """A PC starts, more than its memory is written, its swap space is used, it is switched off after `last`."""
    name = "uefi" if uefi else "bios"
    disk, kept = lab.pc(name)
    free = owner.kept_hash(disk.path, inverse(disk))
    with lab.start([disk.path], name=name, uefi=uefi) as guest:
        seconds = guest.start().ready()
        facts = {"ready": seconds, "steps": guest.steps()}
        facts["root"] = guest.execute("findmnt -no FSTYPE /")["note"]
        facts["upper"] = guest.execute("findmnt -no FSTYPE,SOURCE /run/initramfs/media/borrowed")["note"].split()
        facts["secure_boot"] = guest.execute(SECURE_BOOT)["note"]
        facts["login"] = guest.execute("until systemctl is-active -q serial-getty@ttyS0; do sleep 0.2; done; "
                                       "systemctl is-active serial-getty@ttyS0", timeout=PATIENCE)["note"]
        facts["failed"] = guest.execute("systemctl --failed --quiet --plain | wc -l")["note"]
        fill(guest, "/var/tmp/load", WRITTEN)
        compare(guest, "/var/tmp/load", WRITTEN)
        # A file in memory, of somebody who may not have so much of it.
        small = "/sys/fs/cgroup/small"
        guest.execute("mkdir -p /run/large && mount -t tmpfs -o size=1G large /run/large && "
                      f"mkdir {small} && echo 64M > {small}/memory.max")
        guest.execute(f"echo $$ > {small}/cgroup.procs && head -c 128M /dev/zero > /run/large/file", timeout=PATIENCE)
        facts["swapped_kib"] = int(guest.execute("awk 'NR == 2 { print $4 }' /proc/swaps")["note"])
        guest.execute("umount /run/large")
        last(guest)
        facts["down"] = guest.poweroff()
        facts["said"] = guest.said()
    untouched(disk, kept)
    facts["used"] = owner.kept_hash(disk.path, inverse(disk)) != free
    return facts


def inverse(disk):
    """All that is not free."""
    at, gaps = 0, []
    for start, length in sorted(disk.free):
        gaps.append((at, start - at))
        at = start + length
    return [*gaps, (at, os.path.getsize(disk.path) - at)]


def bios(lab):
    """A PC with a BIOS."""
    return borrows(lab, uefi=False)


def uefi(lab):
    """A PC with UEFI and Secure Boot; and one whose firmware was told of a suspended system."""
    disk, _ = lab.pc("told")
    variables = os.path.join(lab.work, "variables")

    def tell(guest):
        guest.execute(rf"printf '\007\000\000\000{{}}' > /sys/firmware/efi/efivars/{SLEEPER}")
        guest.keep_variables(variables)

    facts = borrows(lab, uefi=True, last=tell)
    return facts | {"told": alone(lab, "told", [disk.path], uefi=True, variables=variables)}


def refused(lab):
    """Beside a disk that was not unmounted, and a full one: the system comes up, and neither is written."""
    dirty, _ = lab.pc("dirty")
    pc.make_dirty(dirty)
    full = os.path.join(lab.work, "full.raw")
    pc.make_full(full)
    return alone(lab, "refused", [dirty.path, full])


def suspended(lab):
    """Beside a suspended system: the same."""
    disk, _ = lab.pc("suspended")
    pc.make_suspended(disk)
    return alone(lab, "suspended", [disk.path])


def alone(lab, name, paths, **options):
    """A PC with nothing to borrow; its disks stay as they are to the last byte."""
    before = [pc.digest(path) for path in paths]
    with lab.start(paths, name=name, **options) as guest:
        seconds = guest.start().ready()
        facts = {"ready": seconds, "upper": guest.execute("findmnt -no FSTYPE /run/initramfs/media/borrowed")["note"]}
        facts["swaps"] = guest.execute("wc -l < /proc/swaps")["note"]
        guest.execute("echo here > /root/note && sync && grep -q here /root/note")
        guest.poweroff()
        facts["said"] = guest.said()
    must([pc.digest(path) for path in paths] == before, f"a disk of {name} was written")
    return facts


def cut(lab):
    """The power goes while the system writes."""
    disk, kept = lab.pc("cut")
    with lab.start([disk.path], name="cut") as guest:
        guest.start().ready()
        guest.execute("(while dd if=/dev/urandom of=/var/tmp/x bs=1M count=200 conv=fsync; do :; done) "
                      ">/dev/null 2>&1 &")
        writes = "query-blockstats"

        def written():
            stats = guest.monitor.command(writes)
            return next(s["stats"]["wr_bytes"] for s in stats if s.get("device") == "disk0")

        wait_until("the system to write", lambda: written() > 64 << 20, PATIENCE)
        facts = {"written": written()}
        guest.process.kill()
        guest.process.wait()
    untouched(disk, kept)
    return facts


def keep(lab):
    """What is written is found on the next PC; and where nothing can be borrowed, it is written to the key."""
    key = lab.make("keep.img", "--keep", "96M")
    disk, kept = lab.pc("keep")
    facts = {}
    with lab.start([disk.path], name="first", key=key, snapshot=False) as guest:
        guest.start().ready()
        guest.execute("echo mine > /root/note")
        facts["upper"] = guest.execute("findmnt -no SOURCE /run/initramfs/media/borrowed")["note"]
        facts["down"] = guest.poweroff()
    untouched(disk, kept)
    with lab.start([], name="second", key=key, snapshot=False) as guest:
        guest.start().ready()
        facts["note"] = guest.execute("cat /root/note")["note"]
        guest.execute("echo more >> /root/note")
        facts["second"] = guest.execute("findmnt -no FSTYPE,SOURCE /run/initramfs/media/borrowed")["note"]
        guest.poweroff()
    kept_file = kept_partition(key)
    facts["check"] = owner.run_any(["e2fsck", "-fn", kept_file])
    facts["on_key"] = owner.debugfs(kept_file, "cat upper/root/note").split()[-2:]
    return facts


def kept_partition(key):
    """The key's partition of what is kept, as a file."""
    table = run(["sfdisk", "--dump", key], env=owner.ENVIRONMENT)
    start, length = map(int, re.search(r"start= *(\d+), size= *(\d+),.*sojourn-keep", table).groups())
    out = key + ".keep"
    run(["dd", f"if={key}", f"of={out}", "bs=512", f"skip={start}", f"count={length}", "status=none"])
    return out


ALL = {f.__name__: f for f in (bios, uefi, refused, suspended, cut, keep)}
