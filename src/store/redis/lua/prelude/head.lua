-- The head of every script but renew_alone: arguments, resources, the clock, records, counters.
--
-- KEYS: d e q l u of each resource. ARGV: now or '' | PUBLISH, SPUBLISH or '' | n | n names | what the operation takes
--
-- All scripts together use these commands, each of which a user of the lock needs the right to:
--   TIME HMGET HSET HDEL ZADD ZREM ZRANGE ZCOUNT ZLEXCOUNT ZSCORE PERSIST PEXPIRE PUBLISH (in a Cluster SPUBLISH)
--
-- Order of writes. Nothing is rolled back, so `check` in the file below tries all of them where nothing is changed by it. Should a
-- script end half-way all the same, a claim that goes is counted for longer than it is in l and u, and so stands in the way of all; an
-- expiry is there before the record that it ends, and goes after it; record and counters change in one HSET.
--
-- A number may be given to redis.call as it is, which writes it with 17 digits; `..` would write 14.

local call, pack, unpack_record = redis.call, cmsgpack.pack, cmsgpack.unpack
local byte, capital, char, find, format, sub = string.byte, string.upper, string.char, string.find, string.format, string.sub
local KEYS, ARGV = KEYS, ARGV

-- A record, as each resource keeps one of every session that has claims on it.
local HELD, SINCE, TTL, LEASE, HEARTBEAT, SEQ, LISTENING = 1, 2, 3, 4, 5, 6, 7
local CHANNEL, ANCESTORS, PROCESS, NAMES, CLAIMS = 8, 9, 10, 11, 12
-- A claim in a record. Its mode is r, p, w, s or h: a slot that is a share of one that an ancestor holds.
local INDEX, MODE, SLOTS, LO, HI, TEXT, TOKEN, NESTED = 1, 2, 3, 4, 5, 6, 7, 8

-- How long the last token and the clock of a resource are kept that nobody holds or waits for, in ms.
local IDLE = 604800000

local publish, n = ARGV[2], tonumber(ARGV[3])
local resources, by_name = {}, {}
local caller, now

local function argument(i)
  return ARGV[3 + n + i]
end

local function unpacked(raw)
  return raw and raw ~= '' and unpack_record(raw)
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
    local meta = call('HMGET', d, '#seq', '#token', '#clock', '#slots', '#count', '#with', session or '#seq')
    local r = {
      d = d, e = KEYS[k - 3], q = KEYS[k - 2], l = KEYS[k - 1], u = KEYS[k],
      name = ARGV[3 + i], known = meta[3], records = {},
      seq = tonumber(meta[1] or 0), token = tonumber(meta[2] or 0), slots = tonumber(meta[4] or 0),
      count = unpacked(meta[5]) or {}, with = unpacked(meta[6]) or {},
      view = {}, seen = {}, first = 1, batch = 2, left = {},
    }
    if session then
      r.records[session] = unpacked(meta[7])
    end
    local clock = tonumber(meta[3] or 0)
    if clock > now then
      now = clock
    end
    resources[i], by_name[r.name] = r, r
  end
end

-- The record that a resource has of a session, or false.
local function record(r, id)
  local known = r.records[id]
  if known == nil then
    known = unpacked(call('HMGET', r.d, id)[1])
    r.records[id] = known
  end
  return known
end

-- The declared resources on which a session has claims; `hint` is one of them, if it is known.
local function places(id, hint)
  for i = hint and 0 or 1, n do
    local r = i == 0 and hint or resources[i]
    local known = record(r, id)
    if known then
      local names = known[NAMES]
      if not names then
        return { r }
      end
      local found = {}
      for j = 1, #names do
        local other = by_name[names[j]]
        if other and record(other, id) then
          found[#found + 1] = other
        end
      end
      return found
    end
  end
  return {}
end

-- The claims of a session in their order, and the resource of each. Some are missing where the keys of a resource were lost.
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

-- Counts claims by class: a capital letter of the mode for those held, a small one for those waiting. Beside them the waiting
-- sessions ('waiters') and the waiting claims below a hold of an ancestor ('nested').
local function count(r, class, by)
  local k = (r.count[class] or 0) + by
  r.count[class] = k ~= 0 and k or nil
end

-- Counts, for each other resource of a waiting session, that it has to be declared where one is granted something here.
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
      '#count', pack(r.count), id, raw)
  else
    call('HSET', r.d, '#clock', now, '#seq', r.seq, '#token', r.token, '#slots', r.slots, '#count', pack(r.count), id, raw)
  end
end
