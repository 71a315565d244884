-- The core of every script except renew_alone: arguments, the clock, and how a record is written.
-- docs/protocol.md describes the keys, the records, and the steps of a script.
--
-- A script takes one of two paths. The fast path handles the common case, one resource that no
-- other session uses, and needs only this core. The general path is one function, which a script
-- defines and calls only if the fast path does not apply: a server would spend a third of the time
-- of a short script on the definition of unused functions. Both paths write by the functions of
-- this core.
--
-- KEYS: d e q l u of each resource. ARGV: now or '' | PUBLISH, SPUBLISH or '' | n | n names | the
-- arguments of the operation
--
-- The scripts together use these commands, so a user of the lock needs the right to:
--   EXISTS TIME HMGET HSET HDEL ZADD ZREM ZRANGE ZCOUNT ZLEXCOUNT ZSCORE PERSIST PEXPIRE PUBLISH (in
--   a Cluster SPUBLISH)
--
-- One more command serves to count the subscribers of waiters without subscriptions to patterns:
--   PUBSUB NUMSUB (in a Cluster PUBSUB SHARDNUMSUB)
--
-- Order of writes. A server rolls nothing back, so `check` in flow.lua tries all commands in a form
-- that changes nothing. One HSET changes the record and the counters together.
--
-- Epoch. From the first claim on a resource to the last, its keys share a number, the epoch. The
-- epoch is a field of d and a member of e. While a session waits, the epoch is also a member of q,
-- with the score -inf. All members of l and u have the epoch as their score. The counters in d say
-- how many members each set has. So the next script notices a key that was lost or replaced, and
-- drops all keys of the resource (`mend`).
--
-- A script may give a number to redis.call directly, which writes the number with 17 digits. The
-- operator `..` would write only 14 digits.

local call, pack, unpack_record = redis.call, cmsgpack.pack, cmsgpack.unpack
local byte, capital, char, find, format, sub = string.byte, string.upper, string.char, string.find, string.format, string.sub
local KEYS, ARGV = KEYS, ARGV

-- A record. Each resource keeps one for every session that has claims on it.
local HELD, SINCE, TTL, LEASE, HEARTBEAT, SEQ, LISTENING = 1, 2, 3, 4, 5, 6, 7
local CHANNEL, ANCESTORS, PROCESS, NAMES, CLAIMS = 8, 9, 10, 11, 12
-- A claim in a record. Its mode is r, p, w, s or h, where h is a share of a slot that an ancestor
-- holds.
local INDEX, MODE, SLOTS, LO, HI, TEXT, TOKEN, NESTED = 1, 2, 3, 4, 5, 6, 7, 8

-- The time in ms for which the clock of an unused resource is kept. Tokens follow the clock, so
-- nothing needs it for longer.
local IDLE = 3600000

-- The format of the keys, which the field #format of each d states.
local FORMAT = '2'

local publish, n = ARGV[2], tonumber(ARGV[3])
local now

-- Refuses the state of another format, before anything else of it is read.
local function check_format(format)
  if format and format ~= FORMAT then
    error('RLOCKFORMAT ' .. format, 0)
  end
end

local function argument(i)
  return ARGV[3 + n + i]
end

-- Sets `now` to the instant of the call, or to the last instant at which a script changed a
-- resource, if that is later: time never goes back for a resource.
local function read_clock(clock)
  if not now then
    now = tonumber(ARGV[1])
    if not now then
      local time = call('TIME')
      now = time[1] * 1000000 + time[2]
    end
  end
  clock = tonumber(clock or 0)
  if clock > now then
    now = clock
  end
end

local function unpacked(raw)
  return raw and raw ~= '' and unpack_record(raw)
end

-- Returns the member of l or u for a cut of a claim.
local function member(class, cut, id, index)
  return class .. cut .. id .. format('%04x', index)
end

-- Writes a record, and all counters with it.
local function put(r, id, raw, names)
  if names then
    call('HSET', r.d, '#format', FORMAT, '#with', pack(r.with), '#clock', now, '#seq', r.seq, '#token', r.token, '#slots', r.slots,
      '#epoch', r.epoch, '#count', pack(r.count), id, raw)
  else
    call('HSET', r.d, '#format', FORMAT, '#clock', now, '#seq', r.seq, '#token', r.token, '#slots', r.slots,
      '#epoch', r.epoch, '#count', pack(r.count), id, raw)
  end
end
