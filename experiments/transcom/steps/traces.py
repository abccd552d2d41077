"""The loads: where their traces are, and how the product makes them ready."""

import os

from .common import TOP, Missing

#: guests of one image, recorded for this project: in the repository
BOOTS = os.path.join(TOP, "crates/trace/tests/boots")
#: more of them
GUEST_TRACES = os.path.join(TOP, "experiments/transcom/traces")
#: what `record` left here
DEMO = os.path.join(TOP, "experiments/transcom/demo.csv.gz")
# With ties at the same microsecond, this order is the one that the known figures are for.
GUESTS = ("office-a", "update", "scan", "idle", "office-b")
# A partition begins in the middle of a block: sectors that align it.
DESKTOPS = (("P3", "0"), ("P6", "2K"), ("P12", "3584"))

#: (name, how blocks are shared, what it is)
LOADS = (
    ("desktops", "private", "three Windows NT workstations (P3, P6 and P12 of the ARC paper), reads only"),
    ("five-guests", "image", "five Debian guests of one image: boot, then office, update, a scan, idling"),
    ("desktop-session", "image", "one Debian desktop: boot, programs, installing, programs again"),
    ("storm4-desktop", "image", "four Debian desktops of one image boot at once, then programs"),
    ("storm4-base", "image", "four small Debian guests of one image boot at once, then programs"),
    ("install-base", "image", "one small Debian guest installs ten packages"),
    ("compile-desktop", "image", "one Debian desktop compiles 25 files"),
    ("demo", "image", "three Debian guests of `make demo`, each booted twice"),
)
SHARING = {name: sharing for name, sharing, _ in LOADS}


def shared():
    """The folder of traces that are not part of the repository."""
    return os.path.join(os.environ.get("SOJOURN_SHARED", os.path.join(TOP, "../shared")), "traces")


def load(sojourn, name):
    """The trace of a load in our own format, made when it is not there yet."""
    made = os.path.join(sojourn.work, f"{name}.sjt")
    if os.path.exists(made):
        return made
    part = os.path.join(sojourn.work, f"{name}.part.sjt")
    if name == "desktops":
        sojourn("trace", "merge", part, *[desktop(sojourn, *one) for one in DESKTOPS], "--in-proportion")
    elif name == "five-guests":
        sojourn("trace", "merge", part, *[there(f"{BOOTS}/{guest}.csv.zst") for guest in GUESTS], "--same-disks",
                "--sort")
    elif name == "demo":
        sojourn("trace", "convert", there(DEMO), part)
    else:
        sojourn("trace", "convert", there(f"{GUEST_TRACES}/{name}.csv.gz"), part)
    os.rename(part, made)
    return made


def desktop(sojourn, name, shift):
    """One of the workstations."""
    made = os.path.join(sojourn.work, f"{name}.sjt")
    if not os.path.exists(made):
        sojourn("trace", "convert", there(f"{shared()}/arc/{name}.lis.zst"), made, "--shift", shift)
    return made


def there(path):
    """The path of a trace that is there."""
    if not os.path.exists(path):
        raise Missing(f"{os.path.relpath(path, TOP)} is not there")
    return path


def at_hand(sojourn, names, say):
    """(name, sharing, trace) of those loads whose traces are there; says which are not."""
    for name in names:
        try:
            yield name, SHARING[name], load(sojourn, name)
        except Missing as e:
            say(f"without {name}: {e}")
