#!/usr/bin/env bash
# timelimit 1.9.2 (Debian 12), against timeout of coreutils: both end a command after a time.
# One would expect: TERM to it is passed on to the command, as timeout does, so that a stop by cron,
# CI or a supervisor ends what was started.
# What happens: timelimit says "terminated by signal 15" and exits with 70, which is the code of an
# error inside of a program. The command gets no signal, and nobody watches its limit any more.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get download -qq timelimit=1.9.2-1 2>/dev/null
dpkg -x timelimit_*.deb .
await() { for _ in $(seq 200); do ! "$@" || return 0; sleep .05; done; echo "in vain: $*"; exit 1; }
cat >command <<'END'
trap 'echo "the command gets TERM" >>log; exit 143' TERM
: >begun; for _ in $(seq 40); do sleep .1; done
echo "the command ends after four seconds" >>log
END
run() { # NAME COMMAND...
    echo "$1:" >>log
    "${@:2}" sh command 2>messages & started=$!
    await test -e begun
    rm begun
    kill -TERM $started
    wait $started 2>/dev/null || echo "exit status $?" >>log
    sed -n '/^timelimit/p' messages >>log
    await sh -c 'tail -2 log | grep -q "the command"'
}

run "timeout, limit of two seconds" timeout 2
run "timelimit, limit of two seconds" usr/bin/timelimit -t 2
cat log
[ "$(cat log)" = "timeout, limit of two seconds:
the command gets TERM
exit status 143
timelimit, limit of two seconds:
exit status 70
timelimit: terminated by signal 15 during the run period
the command ends after four seconds" ]
