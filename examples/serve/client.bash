#!/usr/bin/env bash
# Runs a command under a lock of rlock serve: client.bash HOST PORT KEY COMMAND [ARG]...
# The command inherits the connection, so a killed client leaves the lock to its command.
exec 3<>"/dev/tcp/$1/$2" || exit 75
echo "LOCK $3" >&3
read -r answer <&3
if [ "${answer%% *}" != ok ]; then
    echo "client.bash: not locked: ${answer:-the server is gone}" >&2
    exit 75
fi
set -m # gives the command a process group of its own
{ "${@:4}"; code=$?; echo UNLOCK >&3; exit $code; } &
if read -r answer <&3 && [ "$answer" = ok ]; then wait $!; exit; fi
echo "client.bash: stopped: ${answer:-the server is gone}" >&2
kill -- -$!; exit 76
