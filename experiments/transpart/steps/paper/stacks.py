"""Beginning and end put together from their parts: sums of what was measured one by one, not measured as a whole."""

from .ends import CHANGED
from .summary import KEYS, Cell

BOOT = ("firmware, to the menu", "menu (2 s), kernel and initial RAM disk read", "kernel, to the key's root", "systemd")
"""Parts of a start from a key (`--only key`) that are the VMM's: the same with and without TransPart."""


def mean(result, name, part):
    """The mean of a part's runs."""
    return Cell(run[part] for run in result["runs"].get("ends", {}).get(name, []) if part in run).mean


def begin(result, key):
    """Of each key: the parts of a start from it alone, and with a borrowed disk."""
    boot = sum(key["starts"]["bios"][part] for part in BOOT) if key else 0.0
    found = {}
    for name in KEYS:
        if mean(result, name, "resume") is None:
            continue
        base = {"VMM boot": boot, "VM resume": mean(result, name, "resume")}
        own = {
            "VMM boot": boot,
            "allocate": mean(result, "allocate", "seconds") or 0.0,
            "state copied": mean(result, name, "copy"),
            "VM resume": mean(result, name, "TP resume"),
        }
        found[name] = base, own
    return found


def end(result):
    """Of each key: the parts of an end on it alone, and with a borrowed disk, by what changed."""
    found = {}
    for name in KEYS:
        if mean(result, name, "suspend") is None:
            continue
        own = {
            changed: {
                "VM suspend": mean(result, name, "TP suspend"),
                "state saved": mean(result, name, f"save {changed}"),
            }
            for changed in CHANGED
        }
        found[name] = {"VM suspend": mean(result, name, "suspend")}, own
    return found


def net(parts):
    """Seconds that the second of two stacks takes longer."""
    base, own = parts
    return sum(own.values()) - sum(base.values())


def break_even(result, name):
    """MB of changed state at which an end takes as long with a borrowed disk as without."""
    base, own = end(result)[name]
    saved = base["VM suspend"] - own[0]["VM suspend"] - own[0]["state saved"]
    slope = (own[500]["state saved"] - own[0]["state saved"]) / 500
    return saved / slope
