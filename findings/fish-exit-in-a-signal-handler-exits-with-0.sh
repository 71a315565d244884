#!/usr/bin/env bash
# fish 3.6.0 (Debian 12; 4.0.2 of Debian 13 does the same), which has functions for signals and the
# command trap of other shells.
# One would expect: "exit 7" in such a function ends the script with 7, as "exit 7" in a trap does
# in sh, bash, zsh and ksh; at least not with the status of a success.
# What happens: the script ends there, but fish exits with 0, whatever number exit is given.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get download -qq fish=3.6.0-3.1+deb12u1 fish-common=3.6.0-3.1+deb12u1 libpcre2-32-0=10.42-1 2>/dev/null
for package in *.deb; do dpkg -x "$package" .; done
export HOME=$folder LD_LIBRARY_PATH=$folder/usr/lib/$(uname -m)-linux-gnu
await() { for _ in $(seq 200); do ! "$@" || return 0; sleep .05; done; echo "in vain: $*"; exit 1; }
work='touch begun; for i in (seq 100); sleep .05; end; echo "the script goes on" >>log'
run() { # NAME PROGRAM OPTION SCRIPT
    "$2" $3 "$4" & shell=$!
    await test -e begun
    rm begun
    kill -TERM $shell
    wait $shell && echo "$1: 0" >>log || echo "$1: $?" >>log
}

run "bash, trap" bash -c 'trap "exit 7" TERM; touch begun; for _ in $(seq 100); do sleep .05; done'
run "fish, trap" usr/bin/fish "-N -c" "trap 'exit 7' TERM; $work"
run "fish, --on-signal" usr/bin/fish "-N -c" "function stop --on-signal TERM; exit 7; end; $work"
run "fish, neither" usr/bin/fish "-N -c" "$work"
cat log
[ "$(cat log)" = "bash, trap: 7
fish, trap: 0
fish, --on-signal: 0
fish, neither: 143" ]
