#!/usr/bin/env bash
# PostgreSQL 15.20 (Debian 12).
# One would expect: a row of pg_locks with a relation and mode AccessExclusiveLock means that its
# process keeps everybody from that table, as ALTER TABLE does; so monitors look for such rows.
# What happens: the first process that waits for a row with SELECT FOR UPDATE has such a row, too,
# granted: the lock of the tuple carries the relation and the mode. Readers of the table go on. Only
# locktype tells the two apart.
set -euo pipefail
folder=$(mktemp -d)
trap 'kill $(cat "$folder/pid") 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
apt-get download -qq postgresql-15=15.20-0+deb12u1 postgresql-client-15=15.20-0+deb12u1 libpq5=15.20-0+deb12u1 2>/dev/null
for package in *.deb; do dpkg -x "$package" .; done
export LD_LIBRARY_PATH=$folder/usr/lib/$(uname -m)-linux-gnu PGHOST=$folder PGUSER=u PGDATABASE=postgres
bin=$folder/usr/lib/postgresql/15/bin
mkdir data
as=()
if [ "$(id -u)" = 0 ]; then # A server of PostgreSQL refuses to run as root.
    chown nobody . data
    as=(setpriv --reuid nobody --clear-groups)
fi
ask() { "$bin/psql" -Xqtc "$1"; }
await() { for _ in $(seq 200); do ! "$@" >/dev/null 2>&1 || return 0; sleep .05; done; echo "in vain: $*"; exit 1; }
"${as[@]}" "$bin/initdb" -D data -U u -A trust --no-sync >/dev/null
"${as[@]}" "$bin/postgres" -D data -k "$folder" -h "" -F 2>/dev/null & echo $! >pid
await ask "create table jobs as select 1 as job"

row="select job from jobs for update"
{ echo "begin; $row; \\! touch locked"; await test -e finish; echo "commit;"; } | "$bin/psql" -Xq >/dev/null & owner=$!
await test -e locked
ask "$row" >/dev/null & waiter=$!
waits() { ask "select 'waits' from pg_locks where not granted" | grep -q waits; }
await waits
{
    echo "AccessExclusiveLock on jobs, granted:" $(ask "select locktype from pg_locks
        where relation = 'jobs'::regclass and mode = 'AccessExclusiveLock' and granted")
    echo "rows that a reader sees:" $(ask "select count(*) from jobs")
} | tee log
touch finish
wait $owner $waiter
[ "$(cat log)" = "AccessExclusiveLock on jobs, granted: tuple
rows that a reader sees: 1" ]
