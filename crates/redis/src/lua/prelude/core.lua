-- The core of every script except renew_alone: what all scripts and both paths use.
-- docs/protocol.md describes the keys, the records, and the steps of a script.
--
-- The fast path of a script handles the common case, one resource that no other session uses. It
-- defines no function: a server would spend a quarter of its time on that. The build script writes
-- the text of the functions that a fast path calls in the place of the calls. So such a function
-- assigns no parameter, and the arguments of its call have the names of its parameters. Functions
-- that both paths use are in clock.lua and past.lua, or after the fast path of their script.
--
-- The general path is a function, which a script defines and calls only if no fast path applies.
-- several.lua has what the fast paths for several resources need to read them. Within the general
-- path, record.lua and wake.lua come first: a hand-over needs no other part.
--
-- KEYS: s d e q l u h of each resource. ARGV: now or '' | PUBLISH, SPUBLISH or '' | the arguments
-- of the operation | the name of each resource
--
-- The scripts together use these commands, so a user of the lock needs the right to:
--   GET SET EXISTS TIME HMGET HLEN HSET HDEL ZADD ZREM ZRANGE ZCOUNT ZLEXCOUNT ZSCORE PERSIST
--   PEXPIRE LPUSH PUBLISH (in a Cluster SPUBLISH)
--
-- Without LTRIM, LINDEX and LSET, the locks work and leave no complete history. Without SETRANGE, a
-- renewal takes longer. Only `history` needs LRANGE. One more command serves to count the
-- subscribers of waiters without subscriptions to patterns:
--   PUBSUB NUMSUB (in a Cluster PUBSUB SHARDNUMSUB)
--
-- A resource is quiet if no session uses it, or only a sole holder, beside which nobody holds or
-- waits: a session without ancestors and with one claim on each of its resources, which were all
-- free. The string s has the whole state of a quiet resource. Otherwise s has the counters, and the
-- keys d, e, q, l and u have the rest.
--
-- Order of writes. A server rolls nothing back, so `check` in flow.lua tries all commands in a form
-- that changes nothing.
--
-- Epoch. While a resource is not quiet, its keys share a number, the epoch. The epoch is part of s,
-- a field of d and a member of e. While a session waits, the epoch is also a member of q, with the
-- score -inf. All members of l and u have the epoch as their score. The counters in s say how many
-- members each key has. So the next script notices a key that was lost or replaced, and drops all
-- keys of the resource (`repair`).
--
-- Migration. While a hash slot of a Cluster migrates, a script runs only if all its keys exist, and
-- fails if it uses a key that it has emptied: what it has written by then stays, and the resource
-- is damaged. So a resource that is not quiet has an h, and no script uses a key that it may have
-- emptied. Where the only session changes, or leaves a resource to which the script may add another
-- one, `fill` and the epoch keep l, u and q until `finish`.
--
-- A script may give a number to redis.call directly, which writes the number with 17 digits. The
-- operator `..` would write only 14 digits.

local call, pack, unpacked = redis.call, cmsgpack.pack, cmsgpack.unpack
local KEYS, ARGV = KEYS, ARGV

local publish, n = ARGV[2], #KEYS / 7
-- The instant of the call by the clock of the server, and for the resource at hand: code that goes
-- on to another resource takes its `now` first. Whether the server refused the last write of
-- `leave_alone` at first, because it is at maxmemory.
local server_now, now, is_full
