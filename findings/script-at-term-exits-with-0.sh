#!/usr/bin/env bash
# script of util-linux 2.38.1 (Debian 12): script -qec COMMAND, with which CI and cron give a
# command a terminal; -e is documented to return the exit status of the command.
# One would expect: a script that is stopped by TERM exits with 143, or with what the command made
# of its TERM.
# What happens: it sends TERM to the command, and KILL two seconds later, says "killing shell", and
# exits with 0. Who stopped it takes the unfinished command for a success.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get download -qq bsdutils=1:2.38.1-5+deb12u3 2>/dev/null
dpkg -x bsdutils_*.deb .
await() { for _ in $(seq 200); do ! "$@" || return 0; sleep .05; done; echo "in vain: $*"; exit 1; }
run() { # NAME COMMAND
    usr/bin/script -qec "$2" /dev/null <&- >/dev/null & recorder=$!
    await test -e begun
    rm begun
    kill -TERM $recorder
    wait $recorder && echo "$1: script exits with 0" >>log || echo "$1: script exits with $?" >>log
}

usr/bin/script -qec 'exit 5' /dev/null >/dev/null || echo "a command that exits with 5: script exits with $?" >>log
cat >obeys <<'EOF'
trap 'echo "the command gets TERM and exits with 5" >>log; exit 5' TERM
: >begun; for _ in $(seq 60); do sleep .05; done
EOF
run "a command that obeys" "sh obeys"
cat >deaf <<'EOF'
trap 'echo "the deaf command gets TERM" >>log' TERM
: >begun; for _ in $(seq 60); do sleep .1; done; echo "the deaf command ends" >>log
EOF
run "a deaf command" "sh deaf"
cat log
[ "$(cat log)" = "a command that exits with 5: script exits with 5
the command gets TERM and exits with 5
a command that obeys: script exits with 0
the deaf command gets TERM
a deaf command: script exits with 0" ]
