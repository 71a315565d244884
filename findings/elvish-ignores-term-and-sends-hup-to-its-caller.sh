#!/usr/bin/env bash
# elvish 0.19.2 (Debian 12; 0.21 ignores TERM as well), a shell; here it runs a script without a
# terminal, below a shell without job control, as cron, make and supervisors start it.
# One would expect: TERM and HUP end the script, as in other shells, and reach nobody else.
# What happens: TERM is ignored: the script goes on to its end, with all that comes after the
# running command, and exits with 0. HUP is sent on to the whole process group: to the command, but
# also to the shell that started elvish, which nobody wanted to hang up.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get download -qq elvish=0.19.2-1+b1 2>/dev/null
dpkg -x elvish_*.deb .
await() { for _ in $(seq 200); do ! "$@" || return 0; sleep .05; done; echo "in vain: $*"; exit 1; }
export HOME=$folder
cat >script.elv <<'END'
sh command
echo 'the script goes on' >>log
END
cat >command <<'END'
trap 'echo "the command gets HUP" >>log; exit 1' HUP
trap 'echo "the command gets TERM" >>log; exit 1' TERM
: >begun; for _ in $(seq 20); do sleep .1; done
END
cat >caller <<'END'
trap 'echo "the caller gets HUP" >>log' HUP
usr/bin/elvish -norc script.elv 2>/dev/null & elvish=$!
echo $elvish >pid
wait $elvish
status=$?
[ $status = 129 ] || echo "elvish ends with $status" >>log
END
run() { # SIGNAL
    setsid --wait sh caller & caller=$!
    await test -e begun
    rm begun
    kill "-$1" "$(cat pid)"
    wait $caller
}

run TERM
run HUP
await grep -q "command gets HUP" log
sort log
[ "$(sort log)" = "elvish ends with 0
the caller gets HUP
the command gets HUP
the script goes on" ]
