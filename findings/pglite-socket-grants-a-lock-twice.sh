#!/usr/bin/env bash
# pglite-socket 0.2.17 with pglite 0.5.14 (npm), a server of PostgreSQL for tests and development.
# One would expect: its clients have sessions of their own, since it takes several connections: an
# advisory lock excludes the others and ends with its client, and SET concerns one client.
# What happens: all clients are one session. Each of two gets the same lock, the lock outlives the
# client that took it, and a timeout that one sets ends the statements of the others.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-audit --no-fund --legacy-peer-deps --prefix . \
    @electric-sql/pglite@0.5.14 @electric-sql/pglite-socket@0.2.17 pg@8.16.3
cat >two.mjs <<'END_OF_PROGRAM'
import { PGlite } from '@electric-sql/pglite';
import { PGLiteSocketServer } from '@electric-sql/pglite-socket';
import pg from 'pg';

const folder = process.cwd();
const db = await PGlite.create();
const server = new PGLiteSocketServer({ db, path: `${folder}/.s.PGSQL.5432`, maxConnections: 2 });
await server.start();
const begin = async () => {
    const client = new pg.Client({ host: folder, user: 'postgres', database: 'postgres' });
    await client.connect();
    return async (words) => words ? Object.values((await client.query(words)).rows[0] ?? {})[0] : client.end();
};
const [one, other] = [await begin(), await begin()];
const lock = 'select pg_try_advisory_lock(7)';
console.log('both get the lock:', await one(lock), await other(lock));
await one("set statement_timeout = '90ms'");
console.log('one sets statement_timeout, the other has:', await other('show statement_timeout'));
await one();
const held = "select count(*) from pg_locks where locktype = 'advisory'";
console.log('locks after the end of one:', await other(held));
await other();
process.exit();
END_OF_PROGRAM
node two.mjs | tee log
[ "$(cat log)" = "both get the lock: true true
one sets statement_timeout, the other has: 90ms
locks after the end of one: 1" ]
