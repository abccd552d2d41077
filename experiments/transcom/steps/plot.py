"""Plots as SVG files of their own, for pages in light and in dark: lines over an axis, and bars in groups."""

import math
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 640, 66, 626, 34, 274
# The colours of the product's own pages (Okabe and Ito), and what stands for them on a dark ground.
COLOURS = ("#0072b2", "#d55e00", "#00805f", "#b04f8f", "#9a7400", "#2f97cf", "#444b55", "#8a3d12")
DARK = ("#56b4e9", "#ff8f4a", "#2fc89a", "#e08ac4", "#e0b93a", "#9fd4f2", "#b8c0cc", "#d98a5e")
DASHES = ("", "7 3", "2 3", "9 3 2 3")


def line(name, points, *, dots=False, spread=None):
    """A line through (x, y); with `dots` marks without a line: measurements, or values of the paper. `spread` are
    (x, lowest, highest) of several runs."""
    return {"name": name, "points": list(points), "dots": dots, "spread": list(spread or ())}


def lines(title, x_label, y_label, series, *, log=False, names=None, top=None, log_y=False):
    """A plot of `series`; `names` are (x, text) for the ticks of the x axis. No value may lie above `top`: a line
    that is cut off there would look like one that ends there."""
    ys = [y for s in series for _, y in s["points"]] + [y for s in series for _, _, y in s["spread"]]
    if top is not None and max(ys) > top * 1.0001:
        raise ValueError(f"{title}: {max(ys)} would be cut off at {top}")
    xs = [x for s in series for x, _ in s["points"]]
    place = math.log2 if log else float
    low, high = place(min(xs)), place(max(xs))
    high = high if high > low else low + 1
    ticks, up = scale(ys, top, log_y)

    def across(x):
        return LEFT + (RIGHT - LEFT) * (place(x) - low) / (high - low)

    parts = axes(title, x_label, y_label, ticks, up)
    for x, name in names or [(x, f"{x:g}") for x in sorted(set(xs))]:
        parts.append(text(across(x), BOTTOM + 15, name, "middle"))
    for index, one in enumerate(series):
        points = [(x, y) for x, y in one["points"] if y > 0 or not log_y]
        parts += [f'<path d="M{across(x):.1f} {up(low_y):.1f}V{up(high_y):.1f}" {stroke(index, 1.2)}/>'
                  for x, low_y, high_y in one["spread"]]
        if one["dots"]:
            parts += [dot(across(x), up(y), index) for x, y in points]
        else:
            where = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in points)
            parts.append(f'<polyline points="{where}" fill="none" {stroke(index)}/>')
    return finish(parts, [(one["name"], one["dots"]) for one in series])


def bars(title, x_label, y_label, categories, series, *, log_y=False):
    """Bars in groups. `series` are (name, values), a value for each category or None; a value may be (median,
    lowest, highest)."""
    three = [(name, [v if v is None or isinstance(v, tuple | list) else (v, v, v) for v in values])
             for name, values in series]
    ticks, up = scale([v[2] for _, values in three for v in values if v], None, log_y)
    parts = axes(title, x_label, y_label, ticks, up)
    slot = (RIGHT - LEFT) / len(categories)
    width = slot * 0.84 / len(three)
    for at, category in enumerate(categories):
        parts.append(text(LEFT + slot * (at + 0.5), BOTTOM + 15, str(category), "middle"))
        for index, (name, values) in enumerate(three):
            if values[at] is None:
                continue
            middle, lowest, highest = values[at]
            x, y = LEFT + slot * (at + 0.08) + width * index, up(middle)
            parts.append(f'<rect class="f{index % len(COLOURS)}" x="{x:.1f}" y="{y:.1f}" width="{width - 1:.1f}" '
                         f'height="{max(0.5, BOTTOM - y):.1f}"><title>{escape(name)}, {escape(str(category))}: '
                         f'{middle:g}</title></rect>')
            if highest > lowest:
                parts.append(f'<path d="M{x + width / 2:.1f} {up(lowest):.1f}V{up(highest):.1f}" class="axis"/>')
    return finish(parts, [(name, True) for name, _ in three])


def scale(ys, top, log_y):
    """Ticks of the y axis, and where a value stands."""
    if log_y:
        above = [y for y in ys if y > 0]
        low, high = math.floor(math.log10(min(above)) + 1e-9), math.ceil(math.log10(top or max(above)) - 1e-9)
        high = max(high, low + 1)
        finer = (1,) if high - low > 3 else (1, 2, 5)
        ticks = [10.0 ** n * m for n in range(low, high + 1) for m in finer if 10.0 ** n * m <= 10.0 ** high]
        return ticks, lambda y: BOTTOM - (BOTTOM - TOP) * (math.log10(max(y, 10.0 ** low)) - low) / (high - low)
    top, low = top or max(*ys, 0) or 1, min(*ys, 0)
    step = tick(top - low)
    low = math.floor(low / step + 1e-9) * step
    ticks = [low + step * n for n in range(int((top - low) / step + 1e-9) + 1)]
    return ticks, lambda y: BOTTOM - (BOTTOM - TOP) * (y - low) / (top - low)


def axes(title, x_label, y_label, ticks, up):
    """The head of a drawing, its grid and its labels."""
    parts = [style(), '<rect class="ground" width="100%" height="100%"/>', text(LEFT, 18, title, size=13)]
    for y in ticks:
        parts.append(f'<path class="grid" d="M{LEFT} {up(y):.1f}H{RIGHT}"/>')
        parts.append(text(LEFT - 6, up(y) + 4, f"{y:g}", "end"))
    parts.append(text((LEFT + RIGHT) / 2, BOTTOM + 31, x_label, "middle"))
    middle = (TOP + BOTTOM) / 2
    parts.append(f'<g transform="translate(13 {middle:.0f}) rotate(-90)">{text(0, 0, y_label, "middle")}</g>')
    return parts


def finish(parts, names):
    """The legend below, and the drawing as a file."""
    x, y = LEFT, BOTTOM + 50
    for index, (name, solid) in enumerate(names):
        width = 34 + 6.6 * len(name)
        if x + width > RIGHT and x > LEFT:
            x, y = LEFT, y + 16
        parts.append(dot(x + 9, y - 4, index) if solid else f'<path d="M{x} {y - 4}h20" fill="none" {stroke(index)}/>')
        parts.append(text(x + 25, y, name))
        x += width
    height = y + 12
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
            f'height="{height}" font-family="sans-serif" font-size="11">')
    return "\n".join([head, *parts, "</svg>"]) + "\n"


def style():
    """Colours in light and in dark; on paper always the light ones."""
    def rules(colours, ground, ink, grid):
        return "".join([f".ground{{fill:{ground}}}text{{fill:{ink}}}.grid{{stroke:{grid}}}.axis{{stroke:{ink}}}",
                        *(f".s{n}{{stroke:{c}}}.f{n}{{fill:{c}}}" for n, c in enumerate(colours))])
    return (f'<style>{rules(COLOURS, "#fff", "#333", "#ddd")}@media screen and (prefers-color-scheme:dark)'
            f'{{{rules(DARK, "#0d1117", "#d0d4da", "#30363d")}}}</style>')


def stroke(index, width=2):
    """The attributes of a line: a colour and a dash of its own for each of 32."""
    dash = DASHES[(index + index // len(COLOURS)) % len(DASHES)]
    return f'class="s{index % len(COLOURS)}" stroke-width="{width}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def dot(x, y, index):
    """A mark."""
    return f'<circle class="f{index % len(COLOURS)}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'


def text(x, y, words, anchor="start", size=None):
    """Words at a place."""
    font = f' font-size="{size}"' if size else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{font}>{escape(words)}</text>'


def tick(span):
    """The distance of the y axis's marks: 1, 2 or 5 of a power of ten, four to nine marks."""
    power = 10 ** math.floor(math.log10(span / 4))
    return next(power * step for step in (1, 2, 5, 10) if span / (power * step) < 10 and power * step * 9 >= span)
