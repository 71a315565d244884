#!/usr/bin/env bash
# dbus-run-session of D-Bus 1.14.10 (Debian 12), which runs a command with a message bus of its own,
# as in cron jobs, tests and CI.
# One would expect: TERM ends the command and the bus, or is passed on, since the bus exists for
# this command only.
# What happens: dbus-run-session dies alone. The command runs on without a signal, and when it has
# ended, the bus stays: nobody is left who would end it, so each stopped run leaves a process.
set -euo pipefail
folder=$(mktemp -d)
trap 'kill -KILL "$(cat "$folder/bus")" 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
apt-get download -qq dbus-bin=1.14.10-1~deb12u1 dbus-daemon=1.14.10-1~deb12u1 libdbus-1-3=1.14.10-1~deb12u1 2>/dev/null
for package in *.deb; do dpkg -x "$package" .; done
export LD_LIBRARY_PATH=$folder/usr/lib/$(uname -m)-linux-gnu:$folder/lib/$(uname -m)-linux-gnu
await() { for _ in $(seq 200); do ! "$@" || return 0; sleep .05; done; echo "in vain: $*"; exit 1; }
cat >bus.conf <<'END'
<busconfig><type>session</type><listen>unix:tmpdir=/tmp</listen>
<policy context="default"><allow send_destination="*"/><allow own="*"/></policy></busconfig>
END
cat >command <<'END'
trap 'echo "the command gets TERM" >>log' TERM
: >begun
for _ in $(seq 20); do sleep .1; done
echo "the command ends" >>log
END
run="usr/bin/dbus-run-session --config-file=$folder/bus.conf --dbus-daemon=$folder/usr/bin/dbus-daemon -- sh"
busses() { for p in /proc/[0-9]*; do [ "$(readlink "$p/exe")" != "$folder/usr/bin/dbus-daemon" ] || echo "${p#/proc/}"; done; }

: >empty
$run empty
echo "after a run that ended: $(busses | wc -l) bus" >>log
$run command & session=$!
await test -e begun
kill -TERM $session
wait $session 2>/dev/null || echo "dbus-run-session exits with $?" >>log
await grep -q "command ends" log
sleep 3
busses >bus
echo "three seconds later: $(wc -l <bus) bus" >>log
cat log
[ "$(cat log)" = "after a run that ended: 0 bus
dbus-run-session exits with 143
the command ends
three seconds later: 1 bus" ]
