-- The core of every script except renew_alone: arguments, the clock, and how state is written.
-- docs/protocol.md describes the keys, the records, and the steps of a script.
--
-- The fast path of a script handles the common case, one resource that no other session uses, and
-- needs little more than this core. The general path is a function, which a script defines and
-- calls only if the fast path does not apply: a server would spend a third of the time of a short
-- script on the definition of unused functions. For the same reason, sole.lua, set.lua and past.lua
-- have what both paths need to write a quiet resource, and several.lua has what the fast paths need
-- to read several: a fast path defines only what it uses. Within the general path, record.lua and
-- wake.lua come first: a hand-over needs no other part.
--
-- KEYS: s d e q l u h of each resource. ARGV: now or '' | PUBLISH, SPUBLISH or '' | n | n names |
-- the arguments of the operation
--
-- The scripts together use these commands, so a user of the lock needs the right to:
--   GET SET EXISTS TIME HMGET HLEN HSET HDEL ZADD ZREM ZRANGE ZCOUNT ZLEXCOUNT ZSCORE PERSIST
--   PEXPIRE LPUSH PUBLISH (in a Cluster SPUBLISH)
--
-- Without LTRIM, LINDEX and LSET, the locks work and leave no complete history. Only `history`
-- needs LRANGE. One more command serves to count the subscribers of waiters without subscriptions
-- to patterns:
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
-- keys of the resource (`mend`).
--
-- Migration. While a hash slot of a Cluster migrates, a script runs only if all its keys exist, and
-- fails if it reads a key that it has emptied. So a resource that is not quiet has an h, and no
-- script reads a key that it may have emptied.
--
-- A script may give a number to redis.call directly, which writes the number with 17 digits. The
-- operator `..` would write only 14 digits.

local call, pack, unpacked = redis.call, cmsgpack.pack, cmsgpack.unpack
local KEYS, ARGV = KEYS, ARGV

local publish, n = ARGV[2], tonumber(ARGV[3])
local now

-- Refuses the state of another format, and a value that is not rlock's, before anything is read
-- from it.
local function check_format(raw)
  local start = string.sub(raw, 1, 3)
  if start ~= PACKED then
    local other = string.match(start, '^\162R(.)$')
    error(other and 'RLOCKFORMAT ' .. other or 'a value that rlock did not write', other and 0 or 1)
  end
end

-- Returns how the last hold ended, and the packed jobs, from the past of a resource.
local function last_outcome(past)
  if past == '' then
    return '', ''
  end
  local _, outcome, _, jobs = cmsgpack.unpack_limit(past, 3)
  return outcome, jobs
end

local function argument(i)
  return ARGV[3 + n + i]
end

-- Sets `now` to the instant of the call, or to the last instant at which a script granted, queued
-- or dropped a session, if that is later: time never goes back for a resource.
local function read_clock(clock)
  if not now then
    now = tonumber(ARGV[1])
    if not now then
      local time = call('TIME')
      now = time[1] * 1000000 + time[2]
    end
  end
  if clock > now then
    now = clock
  end
end
