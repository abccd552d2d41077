"""Means and deviations of the runs, and ratios to TransPart."""

import statistics

KEYS = ("SanDrive", "MSD", "IPOD")
DEVICES = (*KEYS, "TransPart", "Host")


class Cell:
    """The runs of one figure on one device."""

    def __init__(self, values):
        self.values = list(values)
        self.n = len(self.values)
        self.mean = statistics.fmean(self.values) if self.values else None
        self.deviation = statistics.stdev(self.values) if self.n > 1 else None

    def __bool__(self):
        return self.n > 0

    def __str__(self):
        if not self.n:
            return "-"
        return (
            f"{number(self.mean)} ± {number(self.deviation)} ({self.n})" if self.n > 1 else f"{number(self.mean)} (1)"
        )

    def spread(self):
        """Mean, and one deviation below and above it."""
        return (self.mean, max(0.0, self.mean - (self.deviation or 0)), self.mean + (self.deviation or 0))


def cell(result, work, figure, device):
    """The runs of a figure on a device."""
    return Cell(run[figure] for run in result["runs"].get(work, {}).get(device, []) if figure in run)


def ratio(result, work, figure, device, rate=False):
    """How many times as long a device takes as TransPart does, or, of rates, how much less it does."""
    one, own = cell(result, work, figure, device), cell(result, work, figure, "TransPart")
    if not one or not own or not own.mean or not one.mean:
        return None
    return own.mean / one.mean if rate else one.mean / own.mean


def number(value):
    """Three digits of a figure, or all before the point."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
