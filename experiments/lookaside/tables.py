"""The tables and the plot of the results."""

import math
import os

PAPER = {
    # Figures 7 and 8 of IRP-TR-03-10: resume latency and total operation latency in seconds, without and with.
    "100m": ((14, 13), (173, 161)),
    "10m": ((39, 12), (370, 212)),
    "1m": ((317, 12), (2688, 1032)),
    "100k": ((4301, 12), (30531, 9530)),
}
NAMES = {"100m": "100 Mb/s", "100m 20ms": "100 Mb/s, 20 ms", "10m": "10 Mb/s", "1m": "1 Mb/s", "100k": "100 Kb/s"}
COLOURS = {"nbd": "#888888", "none": "#c4441c", "33": "#d9a400", "66": "#3a7d44", "100": "#1f5fa8"}
LEGEND = {"nbd": "plain NBD", "none": "attach, no medium", "33": "a third on the medium", "66": "two thirds",
          "100": "all of it"}


def write(folder, results, links, held):
    """results.md and plot.svg."""
    cells = {(cell["link"], cell["held"]): cell for cell in results["cells"]}
    text = "\n".join([*waiting(cells, links, held), "", *wire(cells, links, held), "", *paper(cells, links), "",
                      *shared(results.get("shared_link", []))])
    with open(os.path.join(folder, "results.md"), "w", encoding="utf-8") as f:
        f.write(text)
    with open(os.path.join(folder, "plot.svg"), "w", encoding="utf-8") as f:
        f.write(plot(cells, links, held))
    print(text)


def table(head, rows):
    """A table in Markdown."""
    line = "| " + " | ".join(head) + " |"
    return [line, "|" + "---|" * len(head), *("| " + " | ".join(row) + " |" for row in rows)]


def value(cells, key, field, form):
    """A figure of a cell, or a dash."""
    return form(cells[key][field]) if key in cells and field in cells[key] else "-"


def seconds(number):
    """Seconds as a table has them."""
    return f"{number:.1f}" if number < 100 else f"{number:,.0f}"


def mebibytes(number):
    """Bytes as a table has them."""
    return f"{number / 2**20:.2f}" if number >= 2**20 else f"{number / 1024:.0f} KiB"


def columns(held):
    """What each column is of: a key of the cells, and its head."""
    return [("nbd", "plain NBD"), *((part, "no medium" if part == "none" else f"{part} % on it") for part in held)]


def waiting(cells, links, held):
    """Seconds that the boot waited."""
    kinds = columns(held)
    yield "Seconds that the boot waits for its disk:"
    yield ""
    rows = [[NAMES[link], *(value(cells, (link, kind), "waiting_seconds", seconds) for kind, _ in kinds),
             value(cells, (link, "none"), "attach_seconds", seconds)] for link in links]
    yield from table(["link", *(head for _, head in kinds), "attaching"], rows)


def wire(cells, links, held):
    """MiB in both directions of the link."""
    kinds = columns(held)
    yield "MiB on the wire, both ways, with attaching; in brackets what that is of the chunks that came over it:"
    yield ""

    def both(key):
        cell = cells.get(key)
        if cell is None:
            return "-"
        share = cell["wire_bytes"] / cell["store_chunk_bytes"] if cell.get("store_chunk_bytes", 0) > 2**20 else None
        return mebibytes(cell["wire_bytes"]) + (f" ({share:.2f})" if share else "")

    rows = [[NAMES[link], *(both((link, kind)) for kind, _ in kinds)] for link in links]
    yield from table(["link", *(head for _, head in kinds)], rows)


def paper(cells, links):
    """The paper's wins beside ours."""
    def win(without, with_):
        return f"{100 * (1 - with_ / without):.1f} %"

    rows = []
    for link in links:
        without, with_ = (cells.get((link, part)) for part in ("none", "100"))
        if link not in PAPER or not (without and with_):
            continue
        resume, total = PAPER[link]
        whole = [cell["attach_seconds"] + cell["waiting_seconds"] for cell in (without, with_)]
        rows.append([NAMES[link], f"{resume[0]:,} / {resume[1]:,} s, {win(*resume)}",
                     f"{total[0]:,} / {total[1]:,} s, {win(*total)}",
                     f"{seconds(whole[0])} / {seconds(whole[1])} s, {win(*whole)}"])
    yield "Without and with the medium, and what it saves:"
    yield ""
    head = ["link", "the paper: resume (Figure 7)", "the paper: operations (Figure 8)", "attach and boot"]
    yield from table(head, rows)


def shared(cells):
    """Boots at one moment over one link."""
    if not cells:
        return
    alone = cells[0]["wire_bytes"]
    yield "Boots at one moment over one link of 100 Mb/s that the agents share, as peers:"
    yield ""
    rows = []
    for cell in cells:
        waits = cell["waiting_seconds"]
        name = f"{cell['agents']}" + (f", {cell['killed']} of them killed" if cell["killed"] else "")
        rows.append([name, mebibytes(cell["wire_bytes"]), f"{cell['wire_bytes'] / alone:.2f}",
                     f"{seconds(waits[len(waits) // 2])} / {seconds(waits[-1])}", f"{cell['load']:.1f}"])
    head = ["agents", "MiB on the link", "of one boot's", "a boot waits, s (median / longest)", "load"]
    yield from table(head, rows)
    yield ""


def plot(cells, links, held):
    """Bars for each link, on a logarithmic scale."""
    kinds = ["nbd", *held]
    width, height, left, low, high = 760, 320, 60, 0.01, 10_000
    scale = (height - 70) / math.log10(high / low)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
             'font-size="12">', '<rect width="100%" height="100%" fill="white"/>']

    def at(number):
        return height - 50 - scale * math.log10(max(number, low) / low)

    for power in range(-2, 5):
        y = at(10.0**power)
        parts.append(f'<line x1="{left}" y1="{y:.1f}" x2="{width - 10}" y2="{y:.1f}" stroke="#dddddd"/>'
                     f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g} s</text>')
    group = (width - left - 10) / len(links)
    bar = group / (len(kinds) + 1)
    for number, link in enumerate(links):
        begin = left + number * group
        parts.append(f'<text x="{begin + group / 2:.1f}" y="{height - 32}" text-anchor="middle">{NAMES[link]}</text>')
        for place, kind in enumerate(kinds):
            cell = cells.get((link, kind))
            if cell:
                y = at(cell["waiting_seconds"])
                parts.append(f'<rect x="{begin + (place + 0.5) * bar:.1f}" y="{y:.1f}" width="{bar * 0.9:.1f}" '
                             f'height="{height - 50 - y:.1f}" fill="{COLOURS[kind]}"/>')
    for place, kind in enumerate(kinds):
        x = left + place * 140
        parts.append(f'<rect x="{x}" y="{height - 18}" width="10" height="10" fill="{COLOURS[kind]}"/>'
                     f'<text x="{x + 14}" y="{height - 9}">{LEGEND[kind]}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
