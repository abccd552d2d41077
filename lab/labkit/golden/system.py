"""The system inside the image: Debian's packages, then the laboratory's own few files."""

import os
import shutil

from .. import LAB, TOP, LabError
from ..shell import run, write_file
from . import packages

NOISE = ["apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer",
         "fstrim.timer", "nbd-client.service", "e2scrub_reap.service"]
"""Units that would only add writes at odd times."""

INITRAMFS_MODULES = ["virtio_pci", "virtio_blk", "virtio_scsi", "sd_mod", "ext4", "virtio_rng", "ahci", "ata_piix",
                     "virtio_net", "e1000", "nbd", "iscsi_tcp", "iscsi_ibft", "crc32c_generic"]


def diskless():
    """The program that keeps the disk of a machine without one."""
    program = os.path.join(TOP, "target/debug/static/sojourn-diskless")
    if not os.path.exists(program):
        raise LabError(f"{program} is not there; run scripts/diskless dev")
    return program


def sources():
    """This machine's own Debian sources: a deb822 file or a one-line file."""
    for path in ("/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list"):
        if os.path.exists(path) and os.path.getsize(path):
            return [path]
    return []


def bootstrap(recipe, root, debs):
    """Installs a recipe's packages below `root`; downloaded ones are kept in `debs`."""
    if os.geteuid():
        raise LabError("building the golden image needs root (it is then cached): sudo lab/make-golden")
    os.makedirs(debs, exist_ok=True)
    archives = '"$1/var/cache/apt/archives"'
    command = ["mmdebstrap", "--mode=root", f"--variant={recipe.variant}", "--quiet",
               "--include=" + ",".join(recipe.packages),
               '--aptopt=Acquire::Languages "none"', '--aptopt=Acquire::Check-Valid-Until "false"',
               "--dpkgopt=force-unsafe-io"]
    if not recipe.documents:
        command += [f"--dpkgopt=path-exclude=/usr/share/{d}/*" for d in ("man", "doc", "locale", "info")]
    command += ["--skip=download/empty,essential/unlink",
                f"--setup-hook=mkdir -p {archives} && cp -n '{debs}'/*.deb {archives}/ 2>/dev/null || :",
                f"--customize-hook=cp -n {archives}/*.deb '{debs}'/ || :",
                '--customize-hook=mkdir -p "$1/opt/lab" && cd "$1/opt/lab" && '
                f"APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-get -qq download {packages.BUSYBOX}",
                packages.SUITE, root, *sources()]
    # INITRD=No: the initial RAM disk is made once, at the end.
    run(command, env=dict(os.environ, INITRD="No", DEBIAN_FRONTEND="noninteractive",
                          SOURCE_DATE_EPOCH=str(packages.EPOCH)))


def configure(root, recipe):
    """Adds the agent and the settings, makes the initial RAM disk; returns the kernel's version."""
    write_file(root + "/etc/hostname", "lab\n")
    write_file(root + "/etc/hosts", "127.0.0.1 localhost lab\n")
    write_file(root + "/etc/fstab", "# the root comes from the kernel's command line\n")
    write_file(root + "/etc/machine-id", "")
    # A console login without a password: this image is for laboratories only.
    run(["sed", "-i", "s/^root:[^:]*:/root::/", root + "/etc/shadow"])
    units = root + "/etc/systemd/system"
    for unit in NOISE:
        if not os.path.lexists(f"{units}/{unit}"):
            os.symlink("/dev/null", f"{units}/{unit}")
    for source, target in packages.GUEST_FILES.items():
        shutil.copy(os.path.join(LAB, "guest", source), os.path.join(root, target))
    os.makedirs(units + "/multi-user.target.wants", exist_ok=True)
    os.symlink("/etc/systemd/system/lab-agent.service", units + "/multi-user.target.wants/lab-agent.service")
    # A root over iSCSI is found by what the firmware leaves in memory (iBFT), without parameters. Debian's
    # script reads this file as shell; without an iBFT it would wait for a network for minutes.
    write_file(root + "/etc/iscsi/iscsi.initramfs",
               "modprobe -q iscsi_ibft\n[ ! -e /sys/firmware/ibft/initiator ] || ISCSI_AUTO=true\n")
    kernel = os.listdir(root + "/lib/modules")[0]
    image = f"/boot/initrd.img-{kernel}"
    if recipe is packages.DRACUT:
        shutil.copytree(packages.DRACUT_MODULE, root + "/usr/lib/dracut/modules.d/95sojourn")
        os.makedirs(root + "/usr/lib/sojourn")
        shutil.copy(diskless(), root + "/usr/lib/sojourn/sojourn-diskless")
        write_file(root + "/etc/sojourn/diskless", "")
        make = ["dracut", "--force", "--no-hostonly", "--reproducible", "--add", "network-legacy", image, kernel]
        enter = f"mount --bind /dev '{root}/dev' && mount -t proc proc '{root}/proc' && exec chroot \"$@\""
        enter = ["unshare", "--mount", "sh", "-c", enter, "sh"]
    else:
        write_file(root + "/etc/initramfs-tools/conf.d/lab", "MODULES=list\nCOMPRESS=zstd\n")
        write_file(root + "/etc/initramfs-tools/modules", "\n".join(INITRAMFS_MODULES) + "\n")
        make, enter = ["mkinitramfs", "-o", image, kernel], ["chroot"]
    run([*enter, root, *make],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "SOURCE_DATE_EPOCH": str(packages.EPOCH)})
    write_file(root + "/boot/grub/grub.cfg",
               "serial --unit=0 --speed=115200\nterminal_output serial\nset timeout=0\n"
               f"linux /boot/vmlinuz-{kernel} {packages.KERNEL_PARAMETERS}\n"
               f"initrd /boot/initrd.img-{kernel}\nboot\n")
    return kernel
