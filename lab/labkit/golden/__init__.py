"""Builds the golden image: a small real Debian system that boots everywhere.

`build.golden()` is the entry: it answers from the cache when nothing that goes into the
image has changed.  No loop device, mount or network device is used; everything is
written to files.
"""
