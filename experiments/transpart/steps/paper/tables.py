"""The tables of the paper's evaluation: ours with deviation and number of runs, and ratios beside the paper's."""

from ..common import rows
from . import claims, stacks
from .ends import CHANGED
from .programs import PROGRAMS
from .summary import DEVICES, KEYS, Cell, cell, number, ratio
from .work import ANDREW, THINKING

PHASES = ("Overall", *(name for name, _ in ANDREW))
OFFICE = ("start", "new document", "type and format", "save", "replace, table", "export", "save, open")


def table(result):
    """For the page."""
    return "\n".join(
        [
            transfer(result),
            times(result),
            launches(result),
            phases(result),
            office(result),
            bonnie(result),
            encryption(result),
            ends(result),
        ]
    )


def transfer(result):
    """Table I."""
    body = [
        [
            device,
            *(f"{cell(result, 'transfer', way, device)}" for way in ("read", "write")),
            *(str(value or "-") for value in claims.TABLE_1[device]),
        ]
        for device in DEVICES
    ]
    return rows(["device", "read, MB/s", "write, MB/s", "paper: read", "paper: write"], body)


def times(result):
    """Figures 4 and 7: seconds, and ratios."""
    body = []
    for name, work, figure, row in (
        ("postmark, 512 MiB", "postmark", "flushed", claims.FACTORS["postmark", "postmark"]),
        ("postmark, 64 MiB", "postmark-small", "flushed", claims.FACTORS["postmark", "postmark"]),
        ("install", "install", "install", claims.FACTORS["install", "install"]),
    ):
        body += pair(result, name, work, figure, row)
    return rows(["seconds", *DEVICES], body)


def pair(result, name, work, figure, row):
    """A row of figures, and one of ratios to TransPart, the paper's in brackets."""
    yield [name, *(str(cell(result, work, figure, device)) for device in DEVICES)]
    yield ["ratio to TransPart (paper)", *(beside(result, work, figure, device, row) for device in DEVICES)]


def beside(result, work, figure, device, row):
    """Our ratio and the paper's."""
    if device == "TransPart":
        return "1"
    ours, theirs = ratio(result, work, figure, device), row.get(device)
    text = "-" if ours is None else f"{ours:.2f}"
    if isinstance(theirs, tuple):
        return f"{text} ({theirs[0]:.2f} or {theirs[1]:.2f})"
    return f"{text} ({theirs:.2f})" if theirs else text


def launches(result):
    """Figure 5."""
    body = [[name, *(str(cell(result, "launch", name, device)) for device in DEVICES)] for name in PROGRAMS]
    best = []
    for device in DEVICES:
        found = [(ratio(result, "launch", name, device), name) for name in PROGRAMS]
        found = [one for one in found if one[0]]
        theirs = claims.FACTORS["launch", "largest"].get(device)
        best.append(
            "1" if device == "TransPart" else f"{max(found)[0]:.1f}, {max(found)[1]} ({theirs:g})" if found else "-"
        )
    return rows(["seconds to the window", *DEVICES], [*body, ["largest ratio to TransPart (paper: up to)", *best]])


def phases(result):
    """Table III."""
    body = []
    for phase in PHASES:
        row = {device: claims.TABLE_3[device][phase] / claims.TABLE_3["TransPart"][phase] for device in DEVICES}
        body += pair(result, phase, "andrew", phase, row)
    return rows(["seconds", *DEVICES], body)


def office(result):
    """Figure 6."""
    body = [
        [name, *(str(cell(result, "office", name, device)) for device in DEVICES)] for name in (*OFFICE, "operations")
    ]
    own = cell(result, "office", "operations", "TransPart").mean
    totals, saved = [], []
    for device in DEVICES:
        mean = cell(result, "office", "operations", device).mean
        totals.append(number(THINKING + mean) if mean is not None else "-")
        saved.append(f"{mean - own:.1f}" if mean is not None and own is not None else "-")
    body += [[f"with {THINKING} s of typing", *totals], ["more than TransPart", *saved]]
    return rows(["seconds", *DEVICES], body)


def bonnie(result):
    """Figure 8."""
    body = []
    for name, figure in (
        ("write, MB/s", "write"),
        ("rewrite, MB/s", "rewrite"),
        ("read, MB/s", "read"),
        ("seeks/s", "seeks"),
    ):
        body.append(
            [
                name,
                str(cell(result, "bonnie", figure, "SanDrive")),
                str(cell(result, "bonnie-2g", figure, "SanDrive")),
                *(str(cell(result, "bonnie", figure, device)) for device in DEVICES[1:]),
            ]
        )
    return rows(["1 GB", "SanDrive", "SanDrive, 2 GB", *DEVICES[1:]], body)


def encryption(result):
    """Section 5.1."""
    body = []
    for work, figure, name in (
        ("install", "install", "install, s"),
        ("postmark-small", "flushed", "postmark, 64 MiB, s"),
        ("transfer", "read", "read, MB/s"),
        ("transfer", "write", "write, MB/s"),
    ):
        one, other = (cell(result, work, figure, device) for device in ("TransPart", "TransPart, plain"))
        body.append([name, str(one), str(other), f"{one.mean / other.mean:.2f}" if one and other else "-"])
    return rows(["work", "TransPart, encrypted", "the same way, not encrypted", "ratio"], body)


def ends(result):
    """Figures 9 and 10."""
    runs = result["runs"].get("ends", {})
    parts = (
        "resume",
        "usable",
        "copy",
        "TP resume",
        "suspend",
        "TP suspend",
        *(f"save {changed}" for changed in CHANGED),
    )
    body = [[part, *(str(Cell(run[part] for run in runs.get(key, []))) for key in KEYS)] for part in parts]
    found = stacks.begin(result, None)
    body.append(["start, net", *(f"{stacks.net(found[key]):+.1f}" if key in found else "-" for key in KEYS)])
    found = stacks.end(result)
    for changed in CHANGED:
        body.append(
            [
                f"end, net, {changed} MB",
                *(
                    f"{stacks.net((found[key][0], found[key][1][changed])):+.1f}" if key in found else "-"
                    for key in KEYS
                ),
            ]
        )
    body.append(["break-even, MB", *(f"{stacks.break_even(result, key):.0f}" if key in found else "-" for key in KEYS)])
    lent = Cell(run["seconds"] for run in runs.get("allocate", []))
    return rows(["seconds", *KEYS], body) + f"\nFinding and lending 100 GB of 240 GiB: {lent} s.\n"
