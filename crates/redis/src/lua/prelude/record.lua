-- The records of sessions, and how a change of holders is written.

local byte, capital, char, find, format, sub = string.byte, string.upper, string.char, string.find, string.format, string.sub

-- Adds the fields that never change to the others of a record.
local function with_fixed(known, fixed)
  known[FIXED] = fixed
  local fields = unpacked(fixed)
  for i = 1, #fields do
    known[FIXED + i] = fields[i]
  end
  return known
end

-- Returns the fields that change of the record that d has for a session, and the packed others.
-- Returns a false value without a record.
local function split_record(raw)
  if not raw or raw == '' then
    return false
  end
  local past, known = cmsgpack.unpack_one(raw)
  return known, sub(raw, past + 1)
end

-- Returns the record that d has for a session, or a false value.
local function read_record(raw)
  local known, fixed = split_record(raw)
  return known and with_fixed(known, fixed)
end

-- Returns the revocation of a session's grant, or a false value.
local function revocation(known)
  return known[MORE] and known[MORE].revoked
end

-- Whether a session leaves at an instant that e has.
local function expires(known)
  return known[TTL] > 0 or known[HELD] == KEPT
end

-- Returns the member of l or u for a cut of a claim.
local function member(class, cut, id, index)
  return class .. cut .. id .. format('%04x', index)
end

-- Returns the members of l and u for the claims of a session, as lists of arguments for ZADD or
-- ZREM.
local function cuts(id, claims, held, score)
  local los, his = {}, {}
  for i = 1, #claims do
    local claim = claims[i]
    local class = held and capital(claim[MODE]) or claim[MODE]
    if score then
      los[#los + 1], his[#his + 1] = score, score
    end
    -- Held slots are in the order of their numbers.
    local lo = held and claim[SLOT] and claim[LO] .. format('%08x', claim[SLOT]) or claim[LO]
    los[#los + 1], his[#his + 1] = member(class, lo, id, claim[INDEX]), member(class, claim[HI], id, claim[INDEX])
  end
  return los, his
end

-- Changes a set by a list that may be too long for one call from Lua.
local function change(command, set, list)
  for i = 1, #list, 4000 do
    call(command, set, unpack(list, i, i + 3999 < #list and i + 3999 or #list))
  end
end

-- Adds to a counter. The hand-over of release.lua changes the counters of its two sessions itself.
-- A class of claims has the letter of its mode: a capital for held claims, a
-- small letter for waiting claims. Other counters are:
-- - 'sessions': all sessions
-- - 'waiters': the waiting sessions
-- - 'nested': the waiting claims of sessions with ancestors
-- - 'linked': the waiting sessions that wait for other resources too
-- - 'leases': the sessions with a lease
-- - 'other': the claims of slots that state another number of slots than `r.slots`
-- - the id of a waiting session: 1 if the session may overtake others
local function count(r, class, by)
  local k = (r.count[class] or 0) + by
  r.count[class] = k ~= 0 and k or nil
end

-- Writes a record. `finish` writes the counters, once for all records. If a script ends in between,
-- the sets and the counters do not agree, and the next script notices it.
local function put(r, id, known)
  r.is_changed = true
  call('HSET', r.d, id, pack({ unpack(known, 1, MORE) }) .. known[FIXED])
end

-- Writes the counters of a resource that is not quiet.
local function put_state(r)
  r.past = r.parsed_past and packed_past(r.parsed_past) or r.past
  local state = struct.pack(STATE_OF_SEVERAL, r.now, r.token, r.seq, #r.past, r.past)
  local rest = r.more and pack(r.slots, r.epoch, r.count, r.walks, r.more) or pack(r.slots, r.epoch, r.count, r.walks)
  call('SET', r.s, SEVERAL .. state .. rest)
end

-- Returns the instant at which a kept hold ends that lasts for `length` from an instant.
local function kept_until(from, length)
  return length < EVER and from + math.min(length, KEPT_MAX) or NEVER
end

-- Sets how a session holds, and returns the instant at which the hold ends unless it is renewed.
local function hold(known, waited)
  local kept = known[KEEP_FOR]
  if waited and known[TTL] > 0 then
    known[HELD] = kept > 0 and TO_KEEP or HOLDS
    return now + (kept > 0 and math.min(known[LEASE], kept) or known[LEASE] - 0.5)
  end
  known[HELD] = kept > 0 and KEPT or HOLDS
  return kept > 0 and kept_until(now, kept) or now + known[TTL]
end
