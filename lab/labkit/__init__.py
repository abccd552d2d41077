"""The laboratory: real Debian guests under QEMU on any NBD server.

Used by the tools beside this package and by the repository's demo and tests.
Python's standard library only; nothing here knows the insides of Sojourn, only
its command line (`server.py`).
"""

import os

HERE = os.path.dirname(os.path.realpath(__file__))
LAB = os.path.dirname(HERE)
TOP = os.path.dirname(LAB)
WORK = os.environ.get("SOJOURN_WORK") or os.path.join(TOP, ".work")
"""What is cached or temporary of the repository: git ignores it."""


class LabError(Exception):
    """Something that a person must read: what failed, and what to do."""
