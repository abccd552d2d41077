"""Plots of the experiments, as SVG: bars, and which part of many is so large or less, each on a logarithmic scale."""

import math

WIDTH, LEFT = 760, 60


def _begin(height):
    return [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
            'font-size="12">', '<rect width="100%" height="100%" fill="white"/>']


def bars(groups, kinds, span, legend_step=118):
    """Bars in seconds.

    `groups` is a list of names, each with the figures by kind; `kinds` has the colour and the name of each; `span` the
    powers of ten between which the figures are.
    """
    height, (lowest, highest) = 320, span
    scale, low = (height - 70) / (highest - lowest), 10.0**lowest
    parts = _begin(height)

    def at(number):
        return height - 50 - scale * math.log10(max(number, low) / low)

    for power in range(lowest, highest + 1):
        y = at(10.0**power)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - 10}" y2="{y:.1f}" stroke="#dddddd"/>'
                     f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g} s</text>')
    group = (WIDTH - LEFT - 10) / len(groups)
    bar = group / (len(kinds) + 1)
    for number, (name, figures) in enumerate(groups):
        begin = LEFT + number * group
        parts.append(f'<text x="{begin + group / 2:.1f}" y="{height - 32}" text-anchor="middle">{name}</text>')
        for place, (kind, (colour, _)) in enumerate(kinds.items()):
            if figures.get(kind) is not None:
                y = at(figures[kind])
                parts.append(f'<rect x="{begin + (place + 0.5) * bar:.1f}" y="{y:.1f}" width="{bar * 0.9:.1f}" '
                             f'height="{height - 50 - y:.1f}" fill="{colour}"/>')
    for place, (colour, name) in enumerate(kinds.values()):
        x = LEFT + place * legend_step
        parts.append(f'<rect x="{x}" y="{height - 18}" width="10" height="10" fill="{colour}"/>'
                     f'<text x="{x + 14}" y="{height - 9}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def distribution(curves, colours, dashes, axis):
    """Which part of the figures is so large or less.

    `curves` is a list of (key of a colour, key of a dash, figures); `colours` and `dashes` have the colour or the dash
    of each key and its name; `axis` the powers of ten between which the figures are, and what they are.
    """
    height, (lowest, highest, label) = 376, axis
    bottom, top, low = height - 78, 14, 10.0**lowest

    def x(number):
        return LEFT + (WIDTH - LEFT - 14) * math.log10(max(number, low) / low) / (highest - lowest)

    def y(part):
        return bottom - (bottom - top) * part

    parts = _begin(height)
    for power in range(lowest, highest + 1):
        at = x(10.0**power)
        parts.append(f'<line x1="{at:.1f}" y1="{top}" x2="{at:.1f}" y2="{bottom}" stroke="#dddddd"/>'
                     f'<text x="{at:.1f}" y="{bottom + 16}" text-anchor="middle">{10.0**power:g}</text>')
    for part in (0, 0.25, 0.5, 0.75, 1):
        parts.append(f'<line x1="{LEFT}" y1="{y(part):.1f}" x2="{WIDTH - 30}" y2="{y(part):.1f}" stroke="#dddddd"/>'
                     f'<text x="{LEFT - 6}" y="{y(part) + 4:.1f}" text-anchor="end">{100 * part:.0f} %</text>')
    parts.append(f'<text x="{(LEFT + WIDTH - 30) / 2:.1f}" y="{bottom + 34}" text-anchor="middle">{label}</text>')
    for colour, dash, figures in curves:
        ranked = enumerate(sorted(figures))
        line = " ".join(f"{x(number):.1f},{y((rank + 1) / len(figures)):.1f}" for rank, number in ranked)
        parts.append(f'<polyline points="{line}" fill="none" stroke-width="1.8" stroke="{colours[colour][0]}"'
                     f'{dashes[dash][0]}/>')
    for place, (colour, name) in enumerate(colours.values()):
        parts.append(f'<rect x="{LEFT + place * 90}" y="{height - 40}" width="10" height="10" fill="{colour}"/>'
                     f'<text x="{LEFT + 14 + place * 90}" y="{height - 31}">{name}</text>')
    for place, (dash, name) in enumerate(dashes.values()):
        begin = LEFT + place * 190
        parts.append(f'<line x1="{begin}" y1="{height - 15}" x2="{begin + 30}" y2="{height - 15}" stroke="#444444" '
                     f'stroke-width="1.8"{dash}/><text x="{begin + 36}" y="{height - 11}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
