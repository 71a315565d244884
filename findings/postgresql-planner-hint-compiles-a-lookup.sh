#!/usr/bin/env bash
# PostgreSQL 15.20 (Debian 12), default settings, jit = on among them.
# One would expect: "SET enable_seqscan = off", which many say before a query that is to use an
# index, costs a query of a table with three rows nothing.
# What happens: on a table that has no index the setting adds 10,000,000,000 to the estimated costs.
# That is more than jit_above_cost, so LLVM compiles the query, inlines it and optimises it: about a
# thousand times the time of the query. EXPLAIN without ANALYZE shows it, and a slow log does not.
set -euo pipefail
folder=$(mktemp -d)
trap 'kill $(cat "$folder/pid") 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
apt-get download -qq postgresql-15=15.20-0+deb12u1 postgresql-client-15=15.20-0+deb12u1 libpq5=15.20-0+deb12u1 \
    libllvm14=1:14.0.6-12 libz3-4=4.8.12-3.1 2>/dev/null
for package in *.deb; do dpkg -x "$package" .; done
export LD_LIBRARY_PATH=$folder/usr/lib/$(uname -m)-linux-gnu PGHOST=$folder PGUSER=u PGDATABASE=postgres
bin=$folder/usr/lib/postgresql/15/bin
mkdir data
as=()
if [ "$(id -u)" = 0 ]; then # A server of PostgreSQL refuses to run as root.
    chown nobody . data
    as=(setpriv --reuid nobody --clear-groups)
fi
"${as[@]}" "$bin/initdb" -D data -U u -A trust --no-sync >/dev/null
"${as[@]}" "$bin/postgres" -D data -k "$folder" -h "" -F 2>/dev/null & echo $! >pid
for _ in $(seq 200); do ! "$bin/psql" -Xqc "create table jobs (name text)" 2>/dev/null || break; sleep .05; done
"$bin/psql" -Xqc "insert into jobs values ('a'), ('b'), ('c')" -c "analyze jobs"

for hint in on off; do
    "$bin/psql" -Xqt -c "set enable_seqscan = $hint" -c "explain select * from jobs where name = 'a'" >plan
    "$bin/psql" -Xqt -c "set enable_seqscan = $hint" -c "explain analyze select * from jobs where name = 'a'" >run
    cat plan
    grep "Execution Time" run
    echo "enable_seqscan = $hint: $(grep -c JIT: plan || true) JIT, $(grep -o 'Inlining true' plan || echo 'no inlining')" >>log
done
cat log
[ "$(cat log)" = "enable_seqscan = on: 0 JIT, no inlining
enable_seqscan = off: 1 JIT, Inlining true" ]
