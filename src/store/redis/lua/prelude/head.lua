-- The head of every script but renew_alone: arguments, resources, the clock, records, counters.
-- docs/protocol.md describes the keys, the records, and what a script does step by step.
--
-- KEYS: d e q l u of each resource. ARGV: now or '' | PUBLISH, SPUBLISH or '' | n | n names | what
-- the operation takes
--
-- All scripts together use these commands, each of which a user of the lock needs the right to:
--   TIME HMGET HSET HDEL ZADD ZREM ZRANGE ZCOUNT ZLEXCOUNT ZSCORE PERSIST PEXPIRE PUBLISH (in a Cluster SPUBLISH)
--
--   and, so that subscriptions to patterns do not count as those of waiters: PUBSUB NUMSUB (in a Cluster PUBSUB SHARDNUMSUB)
--
-- Order of writes. Nothing is rolled back, so `check` in the file below tries all of them where
-- nothing is changed by it. Record and counters change in one HSET.
--
-- Epoch. From the first claim on a resource to the last, its keys share a number, the epoch. It is
-- a field of d, a member of e and, while anybody waits, of q with the score -inf, and the score of
-- all members of l and u. The counters in d say how many members each set has. So a key that was
-- lost or replaced is noticed by whichever script comes next, which drops them all (`mend`).
--
-- A number may be given to redis.call as it is, which writes it with 17 digits; `..` would write
-- 14.

local call, pack, unpack_record = redis.call, cmsgpack.pack, cmsgpack.unpack
local byte, capital, char, find, format, sub = string.byte, string.upper, string.char, string.find, string.format, string.sub
local KEYS, ARGV = KEYS, ARGV

-- A record, as each resource keeps one of every session that has claims on it.
local HELD, SINCE, TTL, LEASE, HEARTBEAT, SEQ, LISTENING = 1, 2, 3, 4, 5, 6, 7
local CHANNEL, ANCESTORS, PROCESS, NAMES, CLAIMS = 8, 9, 10, 11, 12
-- A claim in a record. Its mode is r, p, w, s or h: a slot that is a share of one that an ancestor
-- holds.
local INDEX, MODE, SLOTS, LO, HI, TEXT, TOKEN, NESTED = 1, 2, 3, 4, 5, 6, 7, 8

-- How long the last token and the clock of a resource are kept that nobody holds or waits for, in
-- ms.
local IDLE = 604800000

local publish, n = ARGV[2], tonumber(ARGV[3])
local resources, by_name = {}, {}
local caller, now
-- Whether the keys of some resource do not belong together.
local damaged = false

-- So many sessions of a resource whose leases are over are dropped at once, for nobody else is
-- served meanwhile. Where there may be more, the rest counts as before, and a request that would
-- have to wait asks again.
local CROWD = 1000

local function argument(i)
  return ARGV[3 + n + i]
end

local function unpacked(raw)
  return raw and raw ~= '' and unpack_record(raw)
end

-- Whether the keys of a resource belong together. What is there of e up to now has been read.
local function belongs_together(r)
  local count, claims, queued, leases = r.count, 0, 0, 0
  if next(count) then
    for class, k in pairs(count) do
      claims = claims + (#class == 1 and k or 0)
    end
    queued, leases = count.places and count.places + 1 or 0, 1 + (count.leases or 0)
  end
  local from, to = r.epoch or '-inf', r.epoch or '+inf'
  return call('ZCOUNT', r.l, from, to) == claims and call('ZCOUNT', r.u, from, to) == claims
    and call('ZCOUNT', r.q, '-inf', '+inf') == queued and call('ZCOUNT', r.e, '-inf', '+inf') == leases
    and (leases == 0 or r.page[1] == r.epoch) and (queued == 0 or call('ZSCORE', r.q, r.epoch) and true)
end

-- Takes a resource for one that nobody holds or waits for, until its keys are dropped.
local function disown(r)
  r.damaged, damaged = true, true
  r.records, r.count, r.with, r.page = {}, {}, {}, {}
end

-- Reads what is known of the resources and, in the same breath, of the session that calls.
local function begin(session)
  caller = session
  now = tonumber(ARGV[1])
  if not now then
    local time = call('TIME')
    now = time[1] * 1000000 + time[2]
  end
  for i = 1, n do
    local k = 5 * i
    local d = KEYS[k - 4]
    local meta = call('HMGET', d, '#seq', '#token', '#clock', '#slots', '#count', '#with', '#epoch', session or '#seq')
    local r = {
      d = d, e = KEYS[k - 3], q = KEYS[k - 2], l = KEYS[k - 1], u = KEYS[k],
      name = ARGV[3 + i], known = meta[3], records = {},
      seq = tonumber(meta[1] or 0) or 0, token = tonumber(meta[2] or 0) or 0, slots = tonumber(meta[4] or 0) or 0,
      epoch = meta[7], count = meta[7] and unpacked(meta[5]) or {}, with = meta[7] and unpacked(meta[6]) or {},
      view = {}, seen = {}, first = 1, batch = 2, left = {},
    }
    if session then
      r.records[session] = meta[7] and unpacked(meta[8])
    end
    local clock = tonumber(meta[3] or 0)
    if clock > now then
      now = clock
    end
    resources[i], by_name[r.name] = r, r
  end
  for i = 1, n do
    local r = resources[i]
    -- The epoch comes before all expiries.
    r.page = call('ZRANGE', r.e, '-inf', now, 'BYSCORE', 'LIMIT', 0, CROWD + 1, 'WITHSCORES')
    if not belongs_together(r) then
      disown(r)
    end
  end
end

-- The record that a resource has of a session, or false.
local function record(r, id)
  local known = r.records[id]
  if known == nil then
    known = not r.damaged and unpacked(call('HMGET', r.d, id)[1])
    r.records[id] = known
  end
  return known
end

-- The declared resources on which a session has claims; whether it has lost those on another, so
-- that nothing of it counts; and whether these are all. `hint` is one of them, if it is known.
local function places(id, hint)
  for i = hint and 0 or 1, n do
    local r = i == 0 and hint or resources[i]
    local known = record(r, id)
    if known then
      local names = known[NAMES]
      if not names then
        return { r }, false, true
      end
      -- The record at the first resource has all names.
      local first = by_name[names[1]]
      local at_first = first and record(first, id)
      local found, lost = {}, first and not at_first
      for j = 1, at_first and #at_first[NAMES] or 0 do
        local other = by_name[at_first[NAMES][j]]
        if other and record(other, id) then
          found[#found + 1] = other
        else
          lost = lost or other and true
        end
      end
      for j = 1, at_first and 0 or n do
        if record(resources[j], id) then
          found[#found + 1] = resources[j]
        end
      end
      return found, lost, at_first and #found == #at_first[NAMES]
    end
  end
  return {}, false, false
end

-- The claims of a session in their order, and the resource of each. Some are missing where the keys
-- of a resource were lost.
local function claims_of(id, at)
  local found, claims, where = {}, {}, {}
  for i = 1, #at do
    local own = at[i].records[id][CLAIMS]
    for j = 1, #own do
      found[#found + 1] = { own[j], at[i] }
    end
  end
  if #at > 1 then
    table.sort(found, function(a, b)
      return a[1][INDEX] < b[1][INDEX]
    end)
  end
  for i = 1, #found do
    claims[i], where[i] = found[i][1], found[i][2]
  end
  return claims, where
end

-- A session and its ancestors, the innermost first, as list and as set.
local function kin_of(id, ancestors)
  local kin = { id, [id] = true }
  for i = 1, #ancestors, 32 do
    local ancestor = sub(ancestors, i, i + 31)
    kin[#kin + 1], kin[ancestor] = ancestor, true
  end
  return kin
end

-- Counts claims by class: a capital letter of the mode for those held, a small one for those
-- waiting. Beside them the waiting sessions ('waiters'), their members in q ('places'), the waiting
-- claims below a hold of an ancestor ('nested'), the sessions with a lease ('leases'), and the held
-- claims of another number of slots than the one in force ('other').
local function count(r, class, by)
  local k = (r.count[class] or 0) + by
  r.count[class] = k ~= 0 and k or nil
end

-- Counts, for each other resource that the record of a waiting session names, that it has to be
-- declared where one is granted something here.
local function link(r, names, by)
  for i = 1, names and #names or 0 do
    if names[i] ~= r.name then
      local k = (r.with[names[i]] or 0) + by
      r.with[names[i]] = k ~= 0 and k or nil
    end
  end
end

-- Writes a record, and all that is counted with it.
local function put(r, id, raw, names)
  if names then
    call('HSET', r.d, '#with', pack(r.with), '#clock', now, '#seq', r.seq, '#token', r.token, '#slots', r.slots,
      '#epoch', r.epoch, '#count', pack(r.count), id, raw)
  else
    call('HSET', r.d, '#clock', now, '#seq', r.seq, '#token', r.token, '#slots', r.slots, '#epoch', r.epoch,
      '#count', pack(r.count), id, raw)
  end
end
