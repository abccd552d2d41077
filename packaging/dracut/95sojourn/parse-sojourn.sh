#!/bin/sh
# Has the network come up, and then /sbin/sojournroot called.
if [ -n "$(getarg sojourn.disk=)" ]; then
    modprobe nbd || die "The initial RAM disk has no NBD driver"
    # shellcheck disable=SC2034
    netroot=sojourn
    echo 'grep -q . /sys/block/nbd0/pid 2>/dev/null' >"$hookdir/initqueue/finished/sojourn.sh"
fi
