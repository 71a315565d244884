-- The state of the resources, and the records of sessions.

local resources, by_name = {}, {}
local caller
-- Whether the keys of any resource do not belong together.
local damaged = false

-- Maximum number of a resource's expired sessions that one call drops, because the server serves no
-- other client meanwhile. If there may be more, the others count as before, and a request that
-- would have to wait asks again.
local CROWD = 1000

-- Whether the keys of a resource belong together. The caller has read the members of e up to now.
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

-- Treats a resource as unused until its keys are dropped.
local function disown(r)
  r.damaged, damaged = true, true
  r.records, r.count, r.with, r.page = {}, {}, {}, {}
end

-- Reads the state of the resources and, in the same calls, the records of the calling session.
local function begin(session)
  caller = session
  for i = 1, n do
    local k = 5 * i
    local d = KEYS[k - 4]
    local meta = call('HMGET', d, '#seq', '#token', '#clock', '#slots', '#count', '#with', '#epoch', session or '#seq', '#format')
    check_format(meta[9])
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
    read_clock(meta[3])
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

-- Returns the record of a session at a resource, or false.
local function record(r, id)
  local known = r.records[id]
  if known == nil then
    known = not r.damaged and unpacked(call('HMGET', r.d, id)[1])
    r.records[id] = known
  end
  return known
end

-- Returns the declared resources on which a session has claims, and two more values. The second is
-- whether the session has lost its claims on another resource, so that none of its claims counts.
-- The third is whether the declared resources are all of the session's. `hint` is one of the
-- resources, if the caller knows one.
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

-- Returns the claims of a session in their order, and the resource of each. Claims are missing if
-- the keys of their resource were lost.
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

-- Returns a session and its ancestors, the innermost first, as a list and as a set.
local function kin_of(id, ancestors)
  local kin = { id, [id] = true }
  for i = 1, #ancestors, 32 do
    local ancestor = sub(ancestors, i, i + 31)
    kin[#kin + 1], kin[ancestor] = ancestor, true
  end
  return kin
end

-- Adds to a counter. A class of claims has the letter of its mode: a capital for held claims, a
-- small letter for waiting claims. Other counters are:
-- - 'waiters': the waiting sessions
-- - 'places': the members of the waiting sessions in q
-- - 'nested': the waiting claims below a hold of an ancestor
-- - 'leases': the sessions with a lease
-- - 'other': the held claims with another number of slots than the number in force
local function count(r, class, by)
  local k = (r.count[class] or 0) + by
  r.count[class] = k ~= 0 and k or nil
end

-- Counts the other resources that the record of a waiting session names. A script that grants
-- something on this resource must declare them.
local function link(r, names, by)
  for i = 1, names and #names or 0 do
    if names[i] ~= r.name then
      local k = (r.with[names[i]] or 0) + by
      r.with[names[i]] = k ~= 0 and k or nil
    end
  end
end
