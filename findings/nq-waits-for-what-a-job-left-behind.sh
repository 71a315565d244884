#!/usr/bin/env bash
# nq 0.3.1 (Debian 12), a queue of shell commands without a daemon.
# One would expect: the next job begins when the command of the job before has ended, and nq's log
# says "exited with status 0". What a job leaves in the background is its own affair.
# What happens: the lock of the queue is an open file, which every process of the job inherits. A
# daemon that a job has started holds the queue for as long as it lives, after the log of the job
# has its last line.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get download -qq nq=0.3.1-4 2>/dev/null
dpkg -x nq_*.deb .
export NQDIR=$folder/queue
mkdir queue
await() { for _ in $(seq 200); do ! "$@" || return 0; sleep .05; done; echo "in vain: $*"; exit 1; }
has() { grep -qs "$1" log; }

first=$(usr/bin/nq sh -c 'sleep 3 && echo "what was left ends" >>log &')
usr/bin/nq sh -c 'echo "the next job begins" >>log' >next
await grep -qs "exited with status 0" "queue/$first"
echo "the log of the first job says exited" >>log
await has "next job"
cat log
[ "$(cat log)" = "the log of the first job says exited
what was left ends
the next job begins" ]
