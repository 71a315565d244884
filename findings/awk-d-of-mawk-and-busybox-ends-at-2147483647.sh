#!/usr/bin/env bash
# mawk 1.3.4, the awk of a plain Debian 12, and busybox 1.35.0, whose awk many images have: a script
# turns MemAvailable of /proc/meminfo from kilobytes into bytes, and prints the bytes.
# One would expect: printf "%d" prints the number, as gawk does, since awk's numbers are doubles.
# What happens: for all numbers from 2147483648 on, mawk prints 2147483647 and busybox -2147483648.
# So each machine with more has 2 GiB, or less than nothing. %.0f is right in both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get download -qq mawk=1.3.4.20200120-3.1 busybox=1:1.35.0-4+deb12u1+b1 2>/dev/null
for package in *.deb; do dpkg -x "$package" .; done
for awk in usr/bin/mawk "bin/busybox awk"; do
    for kilobytes in 2097151 2097152 4194304; do
        echo -n "$awk: "
        # shellcheck disable=SC2086 # two words
        echo $kilobytes | $awk '{ printf "%d is %.0f\n", $1 * 1024, $1 * 1024 }'
    done
done | tee log
[ "$(cat log)" = "usr/bin/mawk: 2147482624 is 2147482624
usr/bin/mawk: 2147483647 is 2147483648
usr/bin/mawk: 2147483647 is 4294967296
bin/busybox awk: 2147482624 is 2147482624
bin/busybox awk: -2147483648 is 2147483648
bin/busybox awk: -2147483648 is 4294967296" ]
