"""The paper's Figures 4 to 10 and Table III as plots of ours, with the paper's numbers as marks where it has some."""

import importlib.util
import math
import os
from xml.sax.saxutils import escape

from labkit import TOP

from . import claims
from .ends import CHANGED
from .programs import PROGRAMS
from .stacks import begin, end
from .summary import DEVICES, KEYS, cell
from .work import ANDREW

FOLDER = os.path.join(TOP, "experiments/transpart/figures")
ROOM = 1.06
"""What is left above the highest bar."""
MARK = 6
"""The colour of the paper's marks."""
SAID = "the paper's ratio, from TransPart's value"


def load():
    """The drawing of plots, which experiments/transcom has."""
    spec = importlib.util.spec_from_file_location(
        "transcom_plot", os.path.join(TOP, "experiments/transcom/steps/plot.py")
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


plot = load()


def write(result, key):
    """All figures for which there are runs; returns their names."""
    drawn = {
        "figure4": figure4(result),
        "figure5": figure5(result),
        "table3": table3(result),
        "figure6": figure6(result),
        "figure7": figure7(result),
        "figure8": figure8(result),
        "figure8-seeks": figure8_seeks(result),
        "figure9": figure9(result, key),
        "figure10": figure10(result),
    }
    os.makedirs(FOLDER, exist_ok=True)
    for name, text in drawn.items():
        if text:
            with open(os.path.join(FOLDER, f"{name}.svg"), "w", encoding="utf-8") as f:
                f.write(text)
    return [name for name, text in drawn.items() if text]


def bars(title, y_label, categories, series, marks, *, log_y=False, said=SAID):
    """Bars in groups with a line of one deviation each, on a logarithmic axis from 1 up or down; `marks` are
    (category, series, value) of the paper, or (least, most) for the value, and `said` what they are."""
    values = [v for _, cells in series for one in cells if one for v in one.spread() if v > 0 or not log_y]
    if not values:
        return None
    values += [v for _, _, value in marks for v in ends_of(value)]
    values.append(max(values) * ROOM)
    ticks, up = fitted(values) if log_y else plot.scale([*values, 0], None, False)
    parts = plot.axes(title, "", y_label, ticks, up)
    slot = (plot.RIGHT - plot.LEFT) / len(categories)
    width = slot * 0.84 / len(series)

    def left(at, index):
        return plot.LEFT + slot * (at + 0.08) + width * index

    for at, category in enumerate(categories):
        parts.append(plot.text(plot.LEFT + slot * (at + 0.5), plot.BOTTOM + 15, category, "middle"))
        for index, (name, cells) in enumerate(series):
            if cells[at]:
                ground = up(1) if log_y else plot.BOTTOM
                parts += bar((left(at, index), width), up, cells[at].spread(), index, f"{name}, {category}", ground)
    for at, index, value in marks:
        parts += mark(left(at, index) + width / 2, up, value)
    if log_y:
        parts.append(f'<path d="M{plot.LEFT} {up(1):.1f}H{plot.RIGHT}" class="axis"/>')
    names = [(name, True) for name, _ in series]
    return finish(parts, names, said if marks else None)


def ends_of(value):
    """A value of the paper, or the least and the most of it."""
    return value if isinstance(value, tuple) else (value,)


def fitted(values):
    """Ticks at 1, 2 and 5, and where a value stands, on an axis that is no longer than it has to be."""
    steps = [m * 10.0**n for n in range(-3, 4) for m in (1, 2, 5)]
    low = max(step for step in steps if step <= min(1, *values))
    high = min(step for step in steps if step >= max(1, *values) / ROOM)
    span = math.log10(high / low)

    def up(value):
        return plot.BOTTOM - (plot.BOTTOM - plot.TOP) * math.log10(max(value, low) / low) / span

    return [step for step in steps if low <= step <= high], up


def bar(at, up, spread, index, what, ground):
    """One bar, and the line of its deviation."""
    (x, width), (middle, low, high) = at, spread
    y = min(up(middle), ground)
    yield (
        f'<rect class="f{index}" x="{x:.1f}" y="{y:.1f}" width="{width - 1:.1f}" '
        f'height="{max(0.5, abs(ground - up(middle))):.1f}"><title>{escape(what)}: {middle:.3g}</title></rect>'
    )
    if high > low:
        yield f'<path d="M{x + width / 2:.1f} {up(low):.1f}V{up(high):.1f}" class="axis"/>'


def mark(x, up, value):
    """The paper's value, or the range of it."""
    values = ends_of(value)
    if len(values) > 1:
        yield f'<path class="s{MARK}" stroke-width="2" d="M{x:.1f} {up(values[0]):.1f}V{up(values[-1]):.1f}"/>'
    # In a ring of the ground's colour, which a bar of any colour does not hide.
    for one in values:
        yield f'<circle class="ground" cx="{x:.1f}" cy="{up(one):.1f}" r="5.5"/>'
        yield plot.dot(x, up(one), MARK)


def stacked(title, y_label, groups, parts_of, marks, said):
    """Stacked bars: `groups` are (name, [(bar, {part: seconds})]), `marks` the paper's least and most by group and
    bar."""
    bars_of = [(group, name, parts) for group, rows in groups for name, parts in rows]
    if not bars_of:
        return None
    highest = max(max(sum(parts.values()) for _, _, parts in bars_of), *(high for _, high in marks.values()))
    ticks, up = plot.scale([0, ROOM * highest], None, False)
    drawing = plot.axes(title, "", y_label, ticks, up)
    slot = (plot.RIGHT - plot.LEFT) / (len(bars_of) + len(groups) - 1)
    at = 0
    for group, rows in groups:
        middle = plot.LEFT + slot * (at + len(rows) / 2)
        drawing.append(plot.text(middle, plot.BOTTOM + 31, group, "middle"))
        for name, parts in rows:
            below, x = 0.0, plot.LEFT + slot * at
            drawing.append(plot.text(x + slot / 2, plot.BOTTOM + 15, name, "middle"))
            for index, part in enumerate(parts_of):
                value = parts.get(part, 0)
                high, low = up(below + value), up(below)
                drawing.append(
                    f'<rect class="f{index}" x="{x + slot * 0.1:.1f}" y="{high:.1f}" width="{slot * 0.8:.1f}" '
                    f'height="{low - high:.1f}"><title>{escape(part)}: {value:.1f} s</title></rect>'
                )
                below += value
            if (group, name) in marks:
                drawing += mark(x + slot / 2, up, marks[group, name])
            at += 1
        at += 1
    return finish(drawing, [(part, True) for part in parts_of], said)


def finish(parts, names, said):
    """The legend, with what the paper's marks are where there are some."""
    if not said:
        return plot.finish(parts, names)
    # The mark's colour is a fixed one: what lies between has no name.
    text = plot.finish(parts, [*names, (said, True)])
    at = text.rindex('<circle class="f')
    return text[:at] + f'<circle class="f{MARK}' + text[at + len('<circle class="fN') :]


def cells(result, work, figure, devices=DEVICES):
    """The cells of some devices."""
    return [cell(result, work, figure, device) for device in devices]


class Part:
    """A cell as a multiple of another one."""

    def __init__(self, one, base):
        self.one, self.base = one, base

    def __bool__(self):
        return bool(self.one and self.base)

    def spread(self):
        return tuple(value / self.base.mean for value in self.one.spread())


def multiples(result, name, rows):
    """A series: what a device takes of each (work, figure), in multiples of what TransPart takes."""
    return name, [Part(cell(result, *row, name), cell(result, *row, "TransPart")) for row in rows]


OTHERS = [device for device in DEVICES if device != "TransPart"]


def figure4(result):
    """Postmark. The paper's VM has 512 MiB."""
    row = claims.FACTORS["postmark", "postmark"]
    rows = (("postmark", "flushed"), ("postmark-small", "flushed"))
    return bars(
        "Figure 4: Postmark, as multiples of TransPart's time",
        "times TransPart",
        ["512 MiB of memory, as the paper's", "64 MiB"],
        [multiples(result, device, rows) for device in OTHERS],
        [(0, index, row[device]) for index, device in enumerate(OTHERS)],
        log_y=True,
        said="the paper: up to 3 for flash, the others alike",
    )


def figure5(result):
    """Launch of programs."""
    row = claims.FACTORS["launch", "largest"]
    series = []
    for device in OTHERS:
        name, parts = multiples(result, device, [("launch", program) for program in PROGRAMS])
        there = [part for part in parts if part]
        largest = max(there, key=lambda part: part.spread()[0]) if there else Part(None, None)
        series.append((name, [*parts, largest]))
    return bars(
        "Figure 5: launch of six programs, as multiples of TransPart's time",
        "times TransPart",
        [*PROGRAMS, "largest"],
        series,
        [(len(PROGRAMS), index, row[device]) for index, device in enumerate(OTHERS)],
        log_y=True,
        said="the paper's largest ratio; Host is close to TransPart",
    )


def table3(result):
    """The Andrew benchmark as multiples of TransPart's time."""
    phases = ["Overall", *(name for name, _ in ANDREW)]
    marks = [
        (at, index, claims.TABLE_3[device][phase] / claims.TABLE_3["TransPart"][phase])
        for at, phase in enumerate(phases)
        for index, device in enumerate(OTHERS)
    ]
    return bars(
        "Table III: the Andrew benchmark, as multiples of TransPart's time",
        "times TransPart",
        phases,
        [multiples(result, device, [("andrew", phase) for phase in phases]) for device in OTHERS],
        marks,
        log_y=True,
    )


def figure6(result):
    """The office script."""
    own = cell(result, "office", "operations", "TransPart")
    least, most = claims.OFFICE
    marks = [(DEVICES.index(key), 0, (own.mean + least, own.mean + most)) for key in KEYS if own]
    return bars(
        "Figure 6: a writer's quarter of an hour, beyond its 900 s of typing",
        "seconds",
        DEVICES,
        [("operations", cells(result, "office", "operations"))],
        marks,
        said=f"the paper: {least} to {most} s more than TransPart's bar; of which device is not said",
    )


def figure7(result):
    """Installation of packages."""
    row = claims.FACTORS["install", "install"]
    series = [multiples(result, device, [("install", "install")]) for device in OTHERS]
    return bars(
        "Figure 7: installation of 46 packages, as multiples of TransPart's time",
        "times TransPart",
        ["dpkg"],
        series,
        [(0, index, row[device]) for index, device in enumerate(OTHERS)],
        log_y=True,
        said="the paper's ratio, of an improvement that can be read in two ways",
    )


def figure8(result):
    """bonnie++ in order."""
    names = ["SanDrive", "SanDrive-2GB", *DEVICES[1:]]

    def row(figure):
        return [
            cell(result, "bonnie-2g", figure, "SanDrive")
            if name == "SanDrive-2GB"
            else cell(result, "bonnie", figure, name)
            for name in names
        ]

    return bars("Figure 8: bonnie++, in order", "MB/s", names, [("write", row("write")), ("read", row("read"))], [])


def figure8_seeks(result):
    """bonnie++ at random."""
    return bars(
        "Figure 8: bonnie++, at random", "seeks per second", DEVICES, [("seeks", cells(result, "bonnie", "seeks"))], []
    )


def figure9(result, key):
    """Beginning, stacked."""
    found = begin(result, key)
    groups = [(name, [("key", base), ("TransPart", own)]) for name, (base, own) in found.items()]
    marks = {(name, "TransPart"): beside(base, claims.NET_START) for name, (base, _) in found.items()}
    least, most = claims.NET_START
    return stacked(
        "Figure 9: beginning",
        "seconds",
        groups,
        ("VMM boot", "allocate", "state copied", "VM resume"),
        marks,
        f"the paper: {least} to {most} s more than the key's bar; on which key is not said",
    )


def figure10(result):
    """End, stacked."""
    found = end(result)
    groups = [
        (name, [("key", base), *((f"{changed}", own[changed]) for changed in CHANGED)])
        for name, (base, own) in found.items()
    ]
    marks = {
        (name, f"{changed}"): beside(base, claims.NET_STOP_HEAVY if changed == CHANGED[-1] else claims.NET_STOP_LIGHT)
        for name, (base, _) in found.items()
        for changed in CHANGED
        if (name, changed) != claims.NOT_SHORTER
    }
    return stacked(
        "Figure 10: end, by MB that changed",
        "seconds",
        groups,
        ("VM suspend", "state saved"),
        marks,
        "the paper: 2 to 23 s less than the key's bar, at 500 MB 11 to 78 s more",
    )


def beside(base, differences):
    """The least and the most of the paper's differences, from the height of a bar here."""
    return tuple(sum(base.values()) + one for one in differences)
