"""The example that the README names."""

import pathlib
import subprocess
import sys

EXAMPLE = pathlib.Path(__file__).resolve().parents[1] / "examples/explore.py"


def test_the_example_goes_from_a_trace_to_plots(trace, tmp_path):
    trace.save(tmp_path / "day.sjt")
    command = [sys.executable, str(EXAMPLE), str(tmp_path / "day.sjt"), "--out", str(tmp_path)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "20000 requests" in text and "of LRU's misses" in text
    for plot in ("requests.png", "hit-ratios.png", "clients.png"):
        assert (tmp_path / plot).stat().st_size > 10_000
