"""The paper's Figures 4 to 10 and Table III as plots of ours, with the paper's numbers as marks where it has some."""

import importlib.util
import os
from xml.sax.saxutils import escape

from labkit import TOP

from . import claims
from .ends import CHANGED
from .programs import PROGRAMS
from .stacks import begin, end
from .summary import DEVICES, cell
from .work import ANDREW

FOLDER = os.path.join(TOP, "experiments/transpart/figures")
ROOM = 1.06
"""What is left above the highest bar."""
MARK = 6
"""The colour of the paper's marks."""


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


def bars(title, y_label, categories, series, marks, *, x_label="", log_y=False):
    """Bars in groups with a line of one deviation each; `marks` are (category, series, value) of the paper."""
    values = [v for _, cells in series for one in cells if one for v in one.spread() if v > 0 or not log_y]
    if not values:
        return None
    values.append(max([*values, *(value for _, _, value in marks)]) * ROOM)
    ticks, up = plot.scale([*values, *(value for _, _, value in marks), *((0,) if not log_y else ())], None, log_y)
    parts = plot.axes(title, x_label, y_label, ticks, up)
    slot = (plot.RIGHT - plot.LEFT) / len(categories)
    width = slot * 0.84 / len(series)

    def left(at, index):
        return plot.LEFT + slot * (at + 0.08) + width * index

    for at, category in enumerate(categories):
        parts.append(plot.text(plot.LEFT + slot * (at + 0.5), plot.BOTTOM + 15, category, "middle"))
        for index, (name, cells) in enumerate(series):
            if cells[at]:
                parts += bar((left(at, index), width), up, cells[at].spread(), index, f"{name}, {category}")
    parts += [plot.dot(left(at, index) + width / 2, up(value), MARK) for at, index, value in marks]
    names = [(name, True) for name, _ in series]
    return finish(parts, names, bool(marks))


def bar(at, up, spread, index, what):
    """One bar, and the line of its deviation."""
    (x, width), (middle, low, high) = at, spread
    y = up(middle)
    yield (
        f'<rect class="f{index}" x="{x:.1f}" y="{y:.1f}" width="{width - 1:.1f}" '
        f'height="{max(0.5, plot.BOTTOM - y):.1f}"><title>{escape(what)}: {middle:.3g}</title></rect>'
    )
    if high > low:
        yield f'<path d="M{x + width / 2:.1f} {up(low):.1f}V{up(high):.1f}" class="axis"/>'


def stacked(title, y_label, groups, parts_of):
    """Stacked bars: `groups` are (name, [(bar, {part: seconds})])."""
    bars_of = [(group, name, parts) for group, rows in groups for name, parts in rows]
    if not bars_of:
        return None
    ticks, up = plot.scale([0, ROOM * max(sum(parts.values()) for _, _, parts in bars_of)], None, False)
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
            at += 1
        at += 1
    return finish(drawing, [(part, True) for part in parts_of], False)


def finish(parts, names, marked):
    """The legend, with the paper's marks where there are some."""
    if not marked:
        return plot.finish(parts, names)
    # The mark's colour is a fixed one: what lies between has no name.
    text = plot.finish(parts, [*names, ("the paper's ratio, from TransPart's value", True)])
    at = text.rindex('<circle class="f')
    return text[:at] + f'<circle class="f{MARK}' + text[at + len('<circle class="fN') :]


def cells(result, work, figure, devices=DEVICES):
    """The cells of some devices."""
    return [cell(result, work, figure, device) for device in devices]


def factors(result, work, figure, row, at=0):
    """Marks: the paper's factors, from TransPart's mean here."""
    own = cell(result, work, figure, "TransPart")
    return [(DEVICES.index(device), at, own.mean * factor) for device, factor in row.items() if own]


def figure4(result):
    """Postmark."""
    row = claims.FACTORS["postmark", "postmark"]
    return bars(
        "Figure 4: Postmark",
        "seconds",
        DEVICES,
        [
            ("512 MiB of memory", cells(result, "postmark", "flushed")),
            ("64 MiB", cells(result, "postmark-small", "flushed")),
        ],
        factors(result, "postmark-small", "flushed", row, 1),
    )


def figure5(result):
    """Launch of programs."""
    series = [(device, [cell(result, "launch", program, device) for program in PROGRAMS]) for device in DEVICES]
    return bars("Figure 5: launch of six programs", "seconds", list(PROGRAMS), series, [])


def table3(result):
    """The Andrew benchmark as multiples of TransPart's time."""
    phases = ["Overall", *(name for name, _ in ANDREW)]
    own = {phase: cell(result, "andrew", phase, "TransPart") for phase in phases}
    others = [device for device in DEVICES if device != "TransPart"]

    class Part:
        """A cell as a multiple of another one."""

        def __init__(self, one, base):
            self.one, self.base = one, base

        def __bool__(self):
            return bool(self.one and self.base)

        def spread(self):
            return tuple(value / self.base.mean for value in self.one.spread())

    series = [
        (device, [Part(cell(result, "andrew", phase, device), own[phase]) for phase in phases]) for device in others
    ]
    marks = [
        (at, index, claims.TABLE_3[device][phase] / claims.TABLE_3["TransPart"][phase])
        for at, phase in enumerate(phases)
        for index, device in enumerate(others)
    ]
    return bars(
        "Table III: the Andrew benchmark, as multiples of TransPart's time",
        "times TransPart",
        phases,
        series,
        marks,
        log_y=True,
    )


def figure6(result):
    """The office script."""
    own = cell(result, "office", "operations", "TransPart")
    marks = [(0, 0, own.mean + claims.OFFICE[1]), (0, 0, own.mean + claims.OFFICE[0])] if own else []
    return bars(
        "Figure 6: a writer's quarter of an hour, beyond its 900 s of typing",
        "seconds",
        DEVICES,
        [("operations", cells(result, "office", "operations"))],
        marks,
        x_label="the paper's marks: least and most that TransPart saved, above its bar; of which devices is not said",
    )


def figure7(result):
    """Installation of packages."""
    return bars(
        "Figure 7: installation of 46 packages",
        "seconds",
        DEVICES,
        [("dpkg", cells(result, "install", "install"))],
        factors(result, "install", "install", claims.FACTORS["install", "install"]),
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
    groups = [(name, [("key", base), ("TransPart", own)]) for name, (base, own) in begin(result, key).items()]
    return stacked("Figure 9: beginning", "seconds", groups, ("VMM boot", "allocate", "state copied", "VM resume"))


def figure10(result):
    """End, stacked."""
    groups = [
        (name, [("key", base), *((f"{changed}", own[changed]) for changed in CHANGED)])
        for name, (base, own) in end(result).items()
    ]
    return stacked("Figure 10: end, by MB that changed", "seconds", groups, ("VM suspend", "state saved"))
