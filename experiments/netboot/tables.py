"""The tables of the results, and what they say of the goals."""

import os
import statistics
import textwrap

NAMES = {"direct": "kernel given to QEMU, NBD root", "ipxe-nbd": "BIOS, iPXE, NBD root",
         "uefi-http": "UEFI HTTP boot, NBD root", "iscsi": "BIOS, iPXE, iSCSI sanboot"}
OVER_DIRECT, OVER_HAND, OVER_TGT = 1.1, 1.1, 1.3
"""How many times as long a boot may take: as the kernel alone and its transfer, as by hand, as with tgt."""


def write(folder, results):
    """results.md, and the same on the screen."""
    cells = {(cell["method"], cell["by"], cell["rtt_ms"], cell["wire"]): cell["rounds"] for cell in results["cells"]}
    rtts = sorted({key[2] for key in cells if key[3] == "cable"})
    text = "\n".join([*boots(cells, rtts), "", *verdicts(cells, rtts), "", *cable(cells), ""])
    with open(os.path.join(folder, "results.md"), "w", encoding="utf-8") as f:
        f.write(text)
    print(text)


def median(rounds, field="seconds"):
    """The median of a figure of a cell's rounds; None without any."""
    values = [one[field] for one in rounds or () if field in one]
    return statistics.median(values) if values else None


def shown(number, form="{:.1f}"):
    """A figure, or a dash."""
    return "-" if number is None else form.format(number)


def quotient(one, other):
    """How many times as much one is; None when either is not known."""
    return one / other if one and other else None


def boots(cells, rtts):
    """Seconds from power-on to the end of systemd's start."""
    yield "Seconds from power-on to the end of systemd's start, and how many times as long that is. The processor"
    yield "time of the emulated machine until then stands beside it: it depends less on the load of the host."
    yield ""
    head = ["round trip", "method", "sojourn", "by hand", "of by hand", "of the kernel alone", "processor: sojourn",
            "by hand", "load"]
    yield "| " + " | ".join(head) + " |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|--:|"
    for rtt in rtts:
        base = median(cells.get(("direct", "ours", rtt, "cable")))
        for method, name in NAMES.items():
            ours, hand = (cells.get((method, by, rtt, "cable")) for by in ("ours", "hand"))
            row = [f"{rtt} ms", name, shown(median(ours)), shown(median(hand)),
                   shown(quotient(median(ours), median(hand)), "{:.2f}"), shown(quotient(median(ours), base), "{:.2f}"),
                   shown(median(ours, "cpu_seconds")), shown(median(hand, "cpu_seconds")),
                   " / ".join(shown(median(side, "load")) for side in (ours, hand) if side)]
            yield "| " + " | ".join(row) + " |"


def verdicts(cells, rtts):
    """What the issue asks for, and whether it is so."""
    def verdict(what, ratio, most):
        said = "not measured" if ratio is None else f"{ratio:.2f} x, {'as' if ratio <= most else 'NOT as'} promised"
        return f"- {what} (<= {most} x): {said}"

    for rtt in rtts:
        def cell(method, by="ours", rtt=rtt):
            return cells.get((method, by, rtt, "cable"))

        transfer = median(cell("ipxe-nbd"), "http_seconds")
        base = median(cell("direct"))
        whole = base + transfer if base and transfer else None
        yield verdict(f"{rtt} ms: iPXE and NBD root over the kernel alone and the transfer ({shown(transfer)} s)",
                      quotient(median(cell("ipxe-nbd")), whole), OVER_DIRECT)
        for method in ("ipxe-nbd", "uefi-http"):
            yield verdict(f"{rtt} ms: {NAMES[method]} over by hand",
                          quotient(median(cell(method)), median(cell(method, "hand"))), OVER_HAND)
        yield verdict(f"{rtt} ms: {NAMES['iscsi']} over tgt",
                      quotient(median(cell("iscsi")), median(cell("iscsi", "hand"))), OVER_TGT)


def cable(cells):
    """What the cable itself costs at no delay."""
    for by in ("ours", "hand"):
        rounds, bare = (cells.get(("ipxe-nbd", by, 0, wire)) for wire in ("cable", "tap"))
        if rounds and bare:
            who = "sojourn" if by == "ours" else "by hand"
            text = (f"- The cable without a delay, {NAMES['ipxe-nbd']}, {who}: {median(rounds):.1f} s, and "
                    f"{median(bare):.1f} s on a tap device without it (of the machine's processor "
                    f"{median(rounds, 'cpu_seconds'):.1f} and {median(bare, 'cpu_seconds'):.1f} s). It carried "
                    f"{median(rounds, 'frames'):,.0f} frames for {median(rounds, 'cable_cpu_seconds'):.1f} s of "
                    "processor time")
            yield from textwrap.wrap(text, 116, subsequent_indent="  ", break_on_hyphens=False)
