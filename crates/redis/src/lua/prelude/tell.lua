-- The replies that describe sessions.

-- Returns the index of the first claim that a session has on a resource. Unpacks no other claim: a
-- record may have a thousand.
local function first_index(r, id)
  local known = r.records[id]
  if not r.first_indexes[id] and known == nil then
    local raw, at, claim = call('HMGET', r.d, id)[1], 1, nil
    for _ = 1, raw and CLAIMS - 1 or 0 do
      at = cmsgpack.unpack_one(raw, at)
    end
    if raw then
      -- The list of the claims begins with one byte, or with three if it is long.
      at, claim = cmsgpack.unpack_one(raw, at + (sub(raw, at + 1, at + 1) == '\220' and 3 or 1))
      r.first_indexes[id] = claim[INDEX]
    end
  end
  return known and known[CLAIMS][1][INDEX] or r.first_indexes[id]
end

-- Describes a session for a reply: its claims on the resources in `at`, with their places in the
-- queue if these are known. Its instants are those of the latest clock.
local function told(id, at, expiry, place)
  local known, later = at[1].records[id], latest - at[1].now
  local revoked = revocation(known)
  local reply = {
    id, expiry and expiry > 0 and math.min(expiry + later, NEVER) or 0, known[HELD], known[SEQ], known[ASKED] + later, known[SINCE] + later, known[TTL], known[LEASE], known[HEARTBEAT],
    known[ANCESTORS], known[PROCESS], known[LAST],
    { known[HISTORY], known[JOB], known[ONCE_PER], known[CALENDAR], known[IS_NAMED], known[SKIPS], known[HOLD_AT_LEAST], known[KEEP_FOR], known[IS_ACQUIRE], known[HELD_ABOVE],
      revoked and { revoked[1] + later, revoked[2] } or nil },
  }
  for i = 1, #at do
    for j = 1, #at[i].records[id][CLAIMS] do
      local claim = at[i].records[id][CLAIMS][j]
      reply[#reply + 1] = {
        claim[INDEX], at[i].name, plain(claim[MODE]), claim[MODE] == 'h' and 1 or 0, claim[SLOTS], claim[TEXT], claim[TOKEN],
        place and place[id] or 0, claim[SLOT],
      }
    end
  end
  return reply
end

-- Describes sessions with all of their claims, before the sessions leave. In the reply, TO_KEEP
-- stands for every grant that its session has not claimed.
local function told_all(ids)
  local reply = {}
  for i = 1, #ids do
    local at = places(ids[i])
    if #at > 0 then
      local expiry = ended[ids[i]] or expiry_of(at[1], ids[i])
      local its = told(ids[i], at, expiry)
      its[3] = is_unclaimed(at[1], ids[i], at[1].records[ids[i]]) and TO_KEEP or its[3]
      reply[#reply + 1] = its
    end
  end
  return reply
end

-- Numbers the places in a queue, by session. Calls `visit` with each waiter until `visit` returns
-- false.
local function number_waiters(r, visit)
  local place, number, at = {}, 0, 1
  while r.count.waiters do
    local entry = waiter(r, at)
    if not entry then
      break
    end
    if not r.left[entry.id] then
      number = number + 1
      place[entry.id] = number
      if not visit(entry) then
        break
      end
    end
    at = at + 1
  end
  return place
end
