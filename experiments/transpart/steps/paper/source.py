"""The tree that the Andrew benchmark copies, reads and compiles: a part of Linux' sources from Debian's package."""

import os
import shutil

from labkit import WORK
from labkit.shell import run

PACKAGE = "linux-source-6.1"
PLACE = "/opt/andrew"
"""Where it lies on the VM's disk."""
DRIVERS = (
    "gpu net media scsi staging usb misc clk infiniband pinctrl video iio crypto mtd hwmon s390 platform regulator "
    "phy soc mmc mfd power thermal target isdn leds remoteproc rpmsg devfreq perf hid"
)
LEFT_OUT = (*(f"drivers/{name}" for name in DRIVERS.split()), "tools/perf", "tools/testing", "sound", "Documentation")
"""Directories of which only what configures the rest is kept; so of all processors but x86."""
KEPT = ("Kconfig", "Makefile", "Kbuild")


def tree(place):
    """The directory of the tree, made from the package, which is downloaded when it is not there."""
    debs = os.path.join(WORK, "debs")
    known = [name for name in sorted(os.listdir(debs)) if name.startswith(PACKAGE + "_")]
    if not known:
        run(["apt-get", "-q", "download", PACKAGE], cwd=debs)
        known = [name for name in sorted(os.listdir(debs)) if name.startswith(PACKAGE + "_")]
    shutil.rmtree(place, ignore_errors=True)
    os.makedirs(place)
    run(["dpkg-deb", "-x", os.path.join(debs, known[-1]), place])
    run(["tar", "xf", os.path.join(place, f"usr/src/{PACKAGE}.tar.xz"), "-C", place])
    shutil.rmtree(os.path.join(place, "usr"))
    top = os.path.join(place, PACKAGE)
    others = (f"arch/{name}" for name in os.listdir(os.path.join(top, "arch")) if name not in ("x86", "Kconfig"))
    for folder in (*LEFT_OUT, *others):
        thin(os.path.join(top, folder))
    return top


def thin(folder):
    """Deletes all files of a directory but those that configure."""
    for where, _, names in os.walk(folder):
        for name in names:
            if not name.startswith(KEPT) and not name.endswith(".mk"):
                os.unlink(os.path.join(where, name))


def facts(top):
    """How many files and bytes the tree has."""
    sizes = [os.lstat(os.path.join(where, name)).st_size for where, _, names in os.walk(top) for name in names]
    return {"source_files": len(sizes), "source_bytes": sum(sizes)}
