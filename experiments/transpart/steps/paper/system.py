"""The borrower's system: a Debian with what the benchmarks need, before and after its office suite is installed.

Both are qcow2 overlays on one image that the laboratory builds. They are made once and kept.
"""

import contextlib
import json
import os
import shutil

from labkit import WORK
from labkit.golden import build, packages
from labkit.golden.packages import BASE, ROOT_OFFSET, Recipe
from labkit.shell import run

from . import source
from .chroot import System
from .devices import Stack
from .programs import first_use

PROGRAMS = (
    *BASE,
    "postmark",
    "bonnie++",
    "gcc",
    "libc6-dev",
    "make",
    "flex",
    "bison",
    "bc",
    "libelf-dev",
    "perl",
    "python3",
    "xvfb",
    "xdotool",
    "dbus-x11",
    "adwaita-icon-theme",
    "fonts-dejavu-core",
    "firefox-esr",
    "gimp",
    "shotwell",
    "evince",
    "totem",
)
RECIPE = Recipe("transpart-paper", PROGRAMS, size=4 << 30)
"""4 GB, as the paper's VM has."""

SUITE = (
    "libreoffice-writer",
    "libreoffice-calc",
    "libreoffice-impress",
    "libreoffice-draw",
    "libreoffice-math",
    "libreoffice-base",
    "libreoffice-gtk3",
    "libreoffice-java-common",
    "libreoffice-style-breeze",
    "libreoffice-style-sifr",
    "python3-uno",
    "fonts-liberation2",
    "mythes-en-us",
    *(f"libreoffice-help-{language}" for language in ("en-us", "de", "fr", "es", "it", "ja", "pt-br", "ru")),
)
"""What is installed; with what else is of the suite's own source, 45 packages."""
OWN = ("libreoffice", "fonts", "mythes")
"""How the names of sources begin whose packages are installed by the benchmark; all others are there before."""
DEBS = "/opt/office"
"""Where the packages lie on the VM's own disk."""


class Images:
    """The two states: `before` the suite's installation, with its packages and the sources to compile, and `after`."""

    def __init__(self, say):
        self.golden = os.path.join(build.golden(say, RECIPE), "golden.raw")
        self.folder = os.path.join(WORK, "transpart-paper-states", packages.key(RECIPE))
        self.before, self.after = (os.path.join(self.folder, f"{name}.qcow2") for name in ("before", "after"))
        self.say = say

    def prepare(self, sojourn, place):
        """Makes what is not there yet; returns facts of the packages."""
        facts = os.path.join(self.folder, "facts.json")
        if not os.path.exists(facts):
            shutil.rmtree(os.path.dirname(self.folder), ignore_errors=True)
            os.makedirs(self.folder)
            self.say("making the borrower's system, before and after its office suite")
            known = self._make(sojourn, place)
            with open(facts, "w", encoding="utf-8") as f:
                json.dump(known, f)
        with open(facts, encoding="utf-8") as f:
            return json.load(f)

    def _make(self, sojourn, place):
        own, others, known = choose(self.golden, self.folder, place)
        tree = source.tree(os.path.join(place, "source"))
        known.update(source.facts(tree))
        overlay(self.golden, self.before, "raw")
        with self._open(sojourn, self.before, place) as system:
            system.put(others, "/opt/others")
            system.put(own, DEBS)
            shutil.copytree(tree, system.root + source.PLACE, symlinks=True)
            os.unlink(system.root + "/etc/dpkg/dpkg.cfg.d/99mmdebstrap")
            system.sh("dpkg -i --force-unsafe-io /opt/others/*.deb && rm -r /opt/others")
        overlay(self.before, self.after, "qcow2")
        with self._open(sojourn, self.after, place) as system:
            system.sh(f"dpkg -i --force-unsafe-io {DEBS}/*.deb && rm -r {DEBS} {source.PLACE}")
            first_use(system)
        shutil.rmtree(tree)
        return known

    @contextlib.contextmanager
    def _open(self, sojourn, image, place):
        """A system that is changed for good."""
        with Stack(sojourn, place) as stack:
            loop = stack.loop(stack.file(stack.image(image, keep=True), RECIPE.size), ROOT_OFFSET)
            with System(stack.mount(loop), memory=4096) as system:
                yield system


def overlay(below, path, form):
    """A qcow2 on another image."""
    run(["qemu-img", "create", "-q", "-f", "qcow2", "-F", form, "-b", below, path])


def choose(image, folder, place):
    """The files of the packages that are installed, those of what they need beside them, and how many and how large."""
    status, cache = os.path.join(place, "status"), os.path.join(WORK, "debs")
    run(["debugfs", "-R", f"dump /var/lib/dpkg/status {status}", f"{image}?offset={ROOT_OFFSET}"])
    apt = [
        "apt-get",
        "-q",
        "-o",
        f"Dir::State::status={status}",
        "-o",
        "APT::Install-Recommends=false",
        "-o",
        f"Dir::Cache::archives={cache}",
    ]
    os.makedirs(os.path.join(cache, "partial"), exist_ok=True)

    def closure(names):
        return [
            line.split()[1] for line in run([*apt, "-s", "install", *names]).splitlines() if line.startswith("Inst ")
        ]

    everything = closure(SUITE)
    shown = run(["apt-cache", "show", "--no-all-versions", *everything])
    found = {}
    for text in shown.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line and line[0] != " ")
        found[fields["Package"]] = fields
    foreign = [name for name in everything if not found[name].get("Source", name).startswith(OWN)]
    others = closure(foreign)
    own = [name for name in everything if name not in others]
    run([*apt, "-y", "--download-only", "install", *SUITE])
    files = [os.path.join(cache, os.path.basename(found[name]["Filename"])) for name in everything]
    by_name = dict(zip(everything, files, strict=True))
    size = sum(int(found[name]["Size"]) for name in own)
    installed = sum(int(found[name]["Installed-Size"]) << 10 for name in own)
    known = {"packages": len(own), "package_bytes": size, "installed_bytes": installed}
    return [archive(by_name[name]) for name in own], [archive(by_name[name]) for name in others], known


def archive(path):
    """The file of a package as apt calls it, which writes the epoch's colon in another way."""
    if os.path.exists(path):
        return path
    folder, name = os.path.split(path)
    start, _, rest = name.partition("_")
    version = rest.rsplit("_", 1)[0]
    for other in os.listdir(folder):
        if other.startswith(start + "_") and version in other:
            return os.path.join(folder, other)
    raise FileNotFoundError(path)
