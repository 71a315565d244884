-- The state of the resources, as a script reads it.

-- `resources.adds` says whether the script may add a session to resources that others have left.
local resources, by_name = {}, {}
local caller
-- The latest of the instants of the resources, to which replies refer.
local latest = 0
-- Whether the keys of any resource do not belong together.
local damaged = false
-- What this call has left of its work, how many sessions it removes, how many waiters make a
-- long queue, and of how many waiters it declares all names.
local work, crowd, long, heads = WORK, CROWD, LONG, HEADS
-- Whether this call has looked at a waiter or a share, and whether it has granted a request from
-- the queue.
local has_looked, has_granted = false, false

-- Makes the keys of a resource that is quiet no longer. Whatever the server refuses it refuses
-- before anything is half done. An h without an entry gets an empty one.
local function open(r, epoch)
  if call('EXISTS', r.h) == 0 then
    call('LPUSH', r.h, '')
    call('PEXPIRE', r.h, IDLE_MS)
  end
  r.holder, r.is_changed, r.epoch = nil, true, format('%.0f', epoch)
  call('HSET', r.d, '#epoch', r.epoch)
  call('ZADD', r.e, '-inf', r.epoch)
end

-- Refuses the state of another format, and a value that is not rlock's, before anything is read
-- from it. Returns the kind of the state. Of the previous format, which has the same fields, a state
-- serves if no process relies on it: without a session, with a kept hold, or with a lease that is
-- over.
local function kind_of(raw)
  local kind = sub(raw, 1, FIELDS - 1)
  if kind == NOBODY_BEFORE then
    return NOBODY
  end
  if kind == SOLE_BEFORE then
    local clock, expiry, _, _, _, _, _, _, more = struct.unpack(STATE_OF_SOLE, raw, FIELDS)
    read_clock(clock)
    if more ~= '' and unpacked(more) or expiry > 0 and expiry <= now then
      return SOLE
    end
  end
  if kind ~= NOBODY and kind ~= SOLE and kind ~= SEVERAL then
    local other = string.match(raw, '^\162R([^4])')
    error(other and 'RLOCKFORMAT ' .. other or 'a value that rlock did not write', other and 0 or 1)
  end
  return kind
end

-- Reads s, with the record of a sole holder.
local function read_state(r, raw)
  local kind, rest, more = kind_of(raw), nil, nil
  if kind == SOLE then
    r.clock, r.expiry, r.token, r.seq, r.past, r.since, r.ttl, r.holder, more, rest = struct.unpack(STATE_OF_SOLE, raw, FIELDS)
    r.request = sub(raw, rest)
    if more ~= '' then
      r.kept, r.names, r.last, r.more = unpacked(more)
    end
    local claims, fixed = split_record(r.request)
    local claim = claims[1]
    r.fixed, r.index = fixed, r.names and claim[INDEX] or 0
    claim[INDEX], claim[TOKEN] = r.index, r.token
    claim[SLOT] = claim[MODE] == 's' and 0 or nil
    r.slots, r.count = claim[SLOTS], { [capital(claim[MODE])] = 1, leases = r.expiry > 0 and 1 or nil }
    r.records[r.holder] = with_fixed({
      r.kept and KEPT or HOLDS, r.since, 0, 0, r.since, r.names or false, r.ttl, r.last or r.kept or last_outcome(r.past), { claim },
      r.more,
    }, fixed)
    r.more = nil
  elseif kind == SEVERAL then
    r.clock, r.token, r.seq, r.past, rest = struct.unpack(STATE_OF_SEVERAL, raw, FIELDS)
    r.slots, r.epoch, r.count, r.walks, r.more = unpacked(sub(raw, rest))
  else
    r.clock, r.token, r.seq = struct.unpack(STATE_OF_NOBODY, raw, FIELDS)
    r.past = sub(raw, PAST_OF_NOBODY)
  end
end

-- Whether the keys of a resource belong together. The caller has read the members of e up to now.
local function belongs_together(r)
  if not r.epoch and call('EXISTS', r.d, r.e, r.q, r.l, r.u) == 0 then
    return true
  end
  local claims, queued, leases, records = 0, 0, 0, 0
  if r.epoch then
    for class, k in pairs(r.count) do
      claims = claims + (#class == 1 and k or 0)
    end
    queued, leases = r.count.waiters and r.count.waiters + 1 or 0, 1 + (r.count.leases or 0)
    records = 1 + (r.count.sessions or 0)
  end
  local from, to = r.epoch or '-inf', r.epoch or '+inf'
  return call('HLEN', r.d) == records and call('ZCOUNT', r.l, from, to) == claims and call('ZCOUNT', r.u, from, to) == claims
    and call('ZCOUNT', r.q, '-inf', '+inf') == queued and call('ZCOUNT', r.e, '-inf', '+inf') == leases
    and (leases == 0 or r.page[1] == r.epoch) and (queued == 0 or call('ZSCORE', r.q, r.epoch) and true)
    and r.epoch == (r.own_epoch or nil)
end

-- Treats a resource as unused until its keys are dropped.
local function disown(r)
  r.damaged, damaged = true, true
  r.records, r.count, r.page, r.walks = {}, {}, {}, nil
end

-- Reads the state of the resources and, in the same calls, the records of the calling session.
local function begin(session)
  caller = session
  for i = 1, n do
    local k = 7 * i
    local r = {
      s = KEYS[k - 6], d = KEYS[k - 5], e = KEYS[k - 4], q = KEYS[k - 3], l = KEYS[k - 2], u = KEYS[k - 1], h = KEYS[k],
      name = ARGV[#ARGV - n + i], seq = 0, token = 0, slots = 0, count = {}, records = {},
      view = {}, seen = {}, first = 1, batch = 2, left = {}, first_indexes = {},
    }
    local raw = call('GET', r.s)
    if raw then
      r.raw = raw
      read_state(r, raw)
    else
      r.past = string.rep('\0', PAST_LENGTH)
    end
    if r.epoch then
      local fields = call('HMGET', r.d, '#epoch', session or '#epoch')
      r.own_epoch = fields[1]
      if session then
        r.records[session] = read_record(fields[2])
      end
    end
    read_clock(r.clock or 0)
    r.now, latest = now, math.max(latest, now)
    resources[i], by_name[r.name] = r, r
  end
  for i = 1, n do
    local r = resources[i]
    if r.epoch then
      -- The epoch comes before all expiries.
      r.page = call('ZRANGE', r.e, '-inf', r.now, 'BYSCORE', 'LIMIT', 0, 2, 'WITHSCORES')
    elseif r.holder and r.expiry > 0 and r.expiry <= r.now then
      r.page = { '', '-inf', r.holder, r.expiry }
    else
      r.page = {}
    end
    if not belongs_together(r) then
      disown(r)
    end
  end
end

-- Returns the record of a session at a resource, or false.
local function record(r, id)
  local known = r.records[id]
  if known == nil then
    known = not r.damaged and r.epoch and read_record(call('HMGET', r.d, id)[1])
    r.records[id] = known
  end
  return known
end

-- Returns the instant at which the lease of a session ends, 0 if it has none.
local function expiry_of(r, id)
  if r.holder then
    return r.expiry
  end
  return math.ceil(call('ZSCORE', r.e, id) or 0)
end

-- Whether a session has a grant from the queue that it has not claimed. Half a microsecond in e
-- tells such a lease from others, and changes no comparison with a clock.
local function is_unclaimed(r, id, known)
  local score = known[HELD] == HOLDS and r.epoch and call('ZSCORE', r.e, id)
  return known[HELD] == TO_KEEP or score and score % 1 ~= 0
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
