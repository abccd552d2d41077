"""The tables and the plot of the results."""

import os

from labkit import plots

FILES_PAPER = {("berlioz", "100k"): (1281.2, 216.8)}
"""Seconds without and with an up-to-date device: of its Figure 10, what the text at hand tells."""
PAPER = {
    # Figures 7 and 8 of IRP-TR-03-10: resume latency and total operation latency in seconds, without and with.
    "100m": ((14, 13), (173, 161)),
    "10m": ((39, 12), (370, 212)),
    "1m": ((317, 12), (2688, 1032)),
    "100k": ((4301, 12), (30531, 9530)),
}
RECORDED = {"purcell": (87739, 27.66, 6, 252), "messiaen": (44027, 21.27, 2, 227), "robin": (37504, 15.46, 7, 85),
            "berlioz": (17917, 7.85, 8, 57)}
"""Its Figure 9: operations, hours, percent of updates, megabytes of the working set."""
NAMES = {"100m": "100 Mb/s", "100m 20ms": "100 Mb/s, 20 ms", "10m": "10 Mb/s", "1m": "1 Mb/s", "100k": "100 Kb/s"}
COLOURS = {"nbd": "#888888", "none": "#c4441c", "33": "#d9a400", "66": "#3a7d44", "100": "#1f5fa8",
           "desync": "#b08fc7"}
LEGEND = {"nbd": "plain NBD", "none": "no medium", "33": "a third on it", "66": "two thirds on it",
          "100": "all of it", "desync": "desync"}


def write(folder, results, links, held):
    """results.md and plot.svg."""
    cells = {(cell["link"], cell["held"]): cell for cell in results["cells"]}
    text = "\n".join([*waiting(cells, links, held), "", *wire(cells, links, held), "", *paper(cells, links), "",
                      *guests(results.get("guests", []), links), *shared(results.get("shared_link", [])),
                      *files(results.get("files", []), links, held),
                      *desktop(results.get("desktop", []), results.get("operations", []), links)])
    with open(os.path.join(folder, "results.md"), "w", encoding="utf-8") as f:
        f.write(text)
    with open(os.path.join(folder, "plot.svg"), "w", encoding="utf-8") as f:
        f.write(plot(cells, links, held))
    if results.get("desktop"):
        with open(os.path.join(folder, "slowdown.svg"), "w", encoding="utf-8") as f:
            f.write(distribution(results["desktop"], results["operations"]))
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
    others = [("nbd", "plain NBD"), ("desync", "desync")]
    return others + [(part, "no medium" if part == "none" else f"{part} % on it") for part in held]


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


def win(without, with_):
    """What is saved, in percent."""
    return f"{100 * (1 - with_ / without):.1f} %"


def guests(cells, links):
    """Boots of a real guest."""
    if not cells:
        return
    cells = {(cell["link"], cell["way"]): cell for cell in cells}
    ways = [("here", "the disk is here"), ("nbd", "plain NBD"), ("desync", "desync"), ("none", "attach, no medium"),
            ("100", "attach, all on it")]

    def both(key):
        cell = cells.get(key)
        if cell is None:
            return "-"
        return f"{seconds(cell['waiting_seconds'])}, {mebibytes(cell['wire_bytes'])}"

    yield "A real guest from power-on to the end of its start, without KVM: seconds, and MiB on the wire:"
    yield ""
    rows = [[NAMES[link], *(both((link, way)) for way, _ in ways)] for link in links if (link, "none") in cells]
    yield from table(["link", *(head for _, head in ways)], rows)
    yield ""


def files(cells, links, held):
    """The file traces: what they are, and how long each takes."""
    if not cells:
        return
    cells = {(cell["trace"], cell["link"], cell["held"]): cell for cell in cells}
    names = list(dict.fromkeys(name for name, _, _ in cells))
    yield "The file traces (Figure 9): published numbers, and what was made of them:"
    yield ""
    rows = []
    for name in names:
        made, of = next(cell for key, cell in cells.items() if key[0] == name), RECORDED[name]
        rows.append([name, f"{of[0]:,}", f"{of[1]} h", f"{of[2]} %", f"{of[3]} MB", f"{made['files']:,}",
                     f"{made['requests']:,}", f"{made['read_bytes'] / 1e6:.0f} MB",
                     f"{made['written_bytes'] / 1e6:.0f} MB"])
    yield from table(["trace", "operations", "length", "updates", "working set", "files", "requests of the disk",
                      "read", "written"], rows)
    yield ""
    yield "Seconds that a trace takes (Figure 10), by the part of the files that is on the medium:"
    yield ""
    rows = []
    for name in names:
        for link in (link for link in links if (name, link, "none") in cells):
            row = [cells.get((name, link, part)) for part in held]
            took = [cell["waiting_seconds"] if cell else None for cell in row]
            paper_ = FILES_PAPER.get((name, link))
            rows.append([name, NAMES[link], *("-" if part is None else seconds(part) for part in took),
                         win(took[0], took[-1]) if took[-1] else "-",
                         f"{paper_[0]:,} / {paper_[1]:,} s, {win(*paper_)}" if paper_ else "-"])
    yield from table(["trace", "link", *(head for _, head in columns(held)[2:]), "saved by all", "the paper"], rows)
    yield ""


def slowdowns(cell, operations):
    """Of each operation: what it waited for the disk, of the time that it took where the disk was."""
    return [wait / max(operation["seconds"], 0.05) for wait, operation in zip(cell["waits"], operations, strict=True)]


def desktop(cells, operations, links):
    """All operations of a desktop together, and how much each of them was slowed down."""
    if not cells:
        return
    cells = {(cell["link"], cell["held"]): cell for cell in cells}
    here = sum(operation["seconds"] for operation in operations)
    media = (("none", "no medium"), ("fresh", "the fresh system on it"), ("100", "all of it"))
    yield (f"{len(operations)} operations of a desktop, which take {here:.0f} s where the disk is: "
           "seconds over a link (Figure 8):")
    yield ""
    rows = []
    for link in (link for link in links if (link, "none") in cells):
        took = [here + sum(cells[link, held]["waits"]) if (link, held) in cells else None for held, _ in media]
        fresh = cells.get((link, "fresh"), {})
        part = fresh.get("medium_bytes", 0) / max(fresh.get("medium_bytes", 0) + fresh.get("store_chunk_bytes", 0), 1)
        of = PAPER[link][1]
        rows.append([NAMES[link], *("-" if part is None else seconds(part) for part in took),
                     win(took[0], took[1]) if took[1] else "-", f"{100 * part:.0f} %",
                     f"{of[0]:,} / {of[1]:,} s, {win(*of)}"])
    yield from table(["link", *(head for _, head in media), "saved by the fresh system", "which gave of the bytes",
                      "the paper"], rows)
    yield ""
    yield "How much each was slowed down (Figure 12), as a factor of its time where the disk is: median, 90 %, most:"
    yield ""
    rows = []
    for link in (link for link in links if (link, "none") in cells):
        row = [NAMES[link]]
        for held, _ in media:
            slow = sorted(slowdowns(cells[link, held], operations)) if (link, held) in cells else []
            row.append(", ".join(f"{slow[int(at * (len(slow) - 1))]:.2f}" for at in (0.5, 0.9, 1)) if slow else "-")
        rows.append(row)
    yield from table(["link", *(head for _, head in media)], rows)
    yield ""


def distribution(cells, operations):
    """For each link and medium, which part of the operations was slowed down by so much or less."""
    colours = {"100m": "#1f5fa8", "10m": "#3a7d44", "1m": "#d9a400", "100k": "#c4441c"}
    dashes = {"none": ("", "no medium"), "fresh": (' stroke-dasharray="6 3"', "the fresh system on it"),
              "100": (' stroke-dasharray="1 3"', "all of it")}
    curves = [(cell["link"], cell["held"], slowdowns(cell, operations)) for cell in cells]
    axis = (-3, 5, "slowdown: what it takes longer, as a multiple of its time where the disk is")
    return plots.distribution(curves, {link: (colour, NAMES[link]) for link, colour in colours.items()}, dashes, axis)


def plot(cells, links, held):
    """Bars for each link, on a logarithmic scale."""
    kinds = {kind: (COLOURS[kind], LEGEND[kind]) for kind in ("nbd", "desync", *held)}
    groups = [(NAMES[link], {kind: cells[link, kind]["waiting_seconds"] for kind in kinds if (link, kind) in cells})
              for link in links]
    return plots.bars(groups, kinds, (-2, 4))
