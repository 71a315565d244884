#!/usr/bin/env bash
# at 3.2.5 (Debian 12): atrm of a job that runs. It needs root, for a private spool and daemon.
# One would expect: atrm ends the job, or refuses and exits with an error, since it does not cancel it.
# What happens: atrm prints "Warning: deleting running job" and exits with 0. The job gets no signal
# and works on to its end, and from then on atq does not list it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get download -qq at=3.2.5-1+b1 2>/dev/null
dpkg -x at_*.deb .
cat >private <<'EOF'
set -e
mount -t tmpfs -o mode=755 tmpfs /var/spool
mount -t tmpfs -o mode=755 tmpfs /run
install -d -o daemon -g daemon -m 1770 /var/spool/cron/atjobs /var/spool/cron/atspool
install -o daemon -g daemon -m 600 /dev/null /var/spool/cron/atjobs/.SEQ
await() { for _ in $(seq 200); do ! "$@" || return 0; sleep .05; done; echo "in vain: $*"; exit 1; }
usr/sbin/atd
echo 'trap "echo the job gets TERM >>log" TERM HUP INT
echo begun >begun; for _ in $(seq 30); do sleep .1; done; echo "the job ends" >>log' | usr/bin/at -q a now 2>submitted
await test -e begun
usr/bin/at -r 1 2>>log
echo "atrm exits with $?" >>log
[ -n "$(usr/bin/at -l)" ] || echo "atq lists nothing" >>log
await grep -q "job ends" log
EOF
unshare --mount --pid --fork --kill-child --mount-proc sh private
cat log
[ "$(cat log)" = "Warning: deleting running job
atrm exits with 0
atq lists nothing
the job ends" ]
