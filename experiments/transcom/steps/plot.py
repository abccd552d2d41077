"""Line plots as SVG files of their own, which a page on the web can show."""

import math
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 620, 330, 62, 606, 34, 262
# The colours of the product's own pages (Okabe and Ito).
COLOURS = ("#0072b2", "#d55e00", "#00805f", "#b04f8f", "#9a7400", "#2f97cf", "#444b55", "#8a3d12")


def lines(title, x_label, y_label, series, *, log=False, names=None, top=None):
    """A plot of `series`, (name, points) each; `names` are (x, text) for the ticks of the x axis."""
    points = [point for _, line in series for point in line]
    xs = [x for x, _ in points]
    place = math.log2 if log else float
    low, high = place(min(xs)), place(max(xs))
    high = high if high > low else low + 1
    top = top or max(y for _, y in points) or 1
    step = tick(top)

    def across(x):
        return LEFT + (RIGHT - LEFT) * (place(x) - low) / (high - low)

    def up(y):
        return BOTTOM - (BOTTOM - TOP) * min(y / top, 1)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
             'font-family="sans-serif" font-size="11">', f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
             text(LEFT, 18, title, size=13)]
    for n in range(int(top / step + 1e-9) + 1):
        y = up(n * step)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{RIGHT}" stroke="#ddd"/>')
        parts.append(text(LEFT - 6, y + 4, f"{n * step:g}", "end"))
    for x, name in names or [(x, f"{x:g}") for x in sorted(set(xs))]:
        parts.append(text(across(x), BOTTOM + 15, name, "middle"))
    parts.append(text((LEFT + RIGHT) / 2, BOTTOM + 31, x_label, "middle"))
    middle = (TOP + BOTTOM) / 2
    parts.append(f'<g transform="translate(13 {middle:.0f}) rotate(-90)">{text(0, 0, y_label, "middle")}</g>')
    for index, (_, line) in enumerate(series):
        where = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in line)
        dash = ' stroke-dasharray="6 4"' if index >= len(COLOURS) else ""
        parts.append(f'<polyline points="{where}" fill="none" stroke-width="2" '
                     f'stroke="{COLOURS[index % len(COLOURS)]}"{dash}/>')
    parts += legend([name for name, _ in series])
    return "\n".join([*parts, "</svg>"]) + "\n"


def legend(names):
    """The names of the lines, below."""
    x, y = LEFT, BOTTOM + 50
    for index, name in enumerate(names):
        width = 30 + 6.4 * len(name)
        if x + width > RIGHT and x > LEFT:
            x, y = LEFT, y + 15
        dash = ' stroke-dasharray="6 4"' if index >= len(COLOURS) else ""
        yield (f'<path d="M{x} {y - 4}h18" stroke-width="2" stroke="{COLOURS[index % len(COLOURS)]}"{dash}/>'
               + text(x + 22, y, name))
        x += width


def text(x, y, words, anchor="start", size=None):
    """Words at a place."""
    font = f' font-size="{size}"' if size else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{font} fill="#333">{escape(words)}</text>'


def tick(top):
    """The distance of the y axis's marks: 1, 2 or 5 of a power of ten, four to nine marks."""
    power = 10 ** math.floor(math.log10(top / 4))
    return next(power * step for step in (1, 2, 5, 10) if top / (power * step) < 10 and power * step * 9 >= top)
