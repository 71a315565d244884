#!/usr/bin/env bash
# task-spooler 1.0.1 (Debian 12), a queue of commands with one slot, so one job at a time.
# One would expect: when its server is killed, as by the kernel for want of memory, the running job
# ends as well, or the next server finds it and waits for it.
# What happens: the job works on. The next call of tsp starts a new server in silence, which knows
# of no job and begins the next one beside it.
set -euo pipefail
folder=$(mktemp -d)
trap '"$folder/usr/bin/tsp" -K || true; rm -rf "$folder"' EXIT
cd "$folder"
apt-get download -qq task-spooler=1.0.1+dfsg1-1 2>/dev/null
dpkg -x task-spooler_*.deb .
export TS_SOCKET=$folder/socket TMPDIR=$folder
await() { for _ in $(seq 200); do ! "$@" || return 0; sleep .05; done; echo "in vain: $*"; exit 1; }
has() { grep -qs "$1" log; }
# The only process of the program as long as there is no job.
server() { for pid in /proc/[0-9]*; do [ "$(readlink "$pid/exe")" != "$folder/usr/bin/tsp" ] || echo "${pid#/proc/}"; done; }

usr/bin/tsp -S 1
server=$(server)
usr/bin/tsp sh -c 'echo "the first job begins" >>log; sleep 3; echo "the first job ends" >>log' >jobs
await has "first job begins"
kill -KILL "$server"
await sh -c "! kill -0 $server 2>/dev/null || grep -q '^State:.Z' /proc/$server/status"
usr/bin/tsp sh -c 'echo "the second job begins" >>log' >>jobs
await has "first job ends"
cat log
[ "$(cat log)" = "the first job begins
the second job begins
the first job ends" ]
