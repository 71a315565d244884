-- The listing of the sessions that are in the way of a busy request.

-- Lists some of the sessions that conflict with claims on a resource: holders first, then waiters,
-- and the number of all waiters. A held claim may surround the span and have no end inside it. Of
-- these claims, the listing looks at the nearest on either side and at the first of all. If few
-- claims are held, these are all of them. All listings of the call share `looks_left`, in claims
-- that the listing reads. A search of a set costs as much as READ_SET claims, and so does a
-- session; a claim that was read and a pair of claims that the listing compares cost less.
local READ_SET, PAIR = 2, 0.1
local looks_left = LOAD
local function listing(r, claims, kin)
  local reply, seen = { r.name, r.count.waiters or 0 }, {}
  -- The listing is complete when it has all holders, however many claims the request has.
  local left = math.min(16, (r.count.sessions or 0) - (r.count.waiters or 0))
  local function tell(id, expiry, place_of)
    if not seen[id] and not kin[id] then
      looks_left = looks_left - READ_SET - 0.5 * #r.records[id][CLAIMS]
      seen[id] = true
      reply[#reply + 1] = told(id, { r }, expiry, place_of)
      left = left - 1
    end
  end
  local pool = pool_of(r, kin)
  pool = pool and pool.count > 1 and pool or nil
  -- The classes that may be in the way of a claim. A share is in the way only of one that takes
  -- from the same pool.
  local function modes_of(claim)
    return CLASH[claim[MODE]] .. ((claim[MODE] == 's' or claim[MODE] == 'h' and pool) and claim[MODE] or '')
  end
  local function in_way_of(claim, mode, lo, hi)
    return find(modes_of(claim), mode, 1, true) and overlaps(lo, hi, claim[LO], claim[HI])
  end
  local function look(claim, members)
    for i = 1, #members do
      local id = owner(members[i])
      if left <= 0 or looks_left <= 0 then
        return
      end
      local is_new = r.records[id] == nil
      local known = not seen[id] and record(r, id)
      looks_left = looks_left - (is_new and known and 0.5 * #known[CLAIMS] or 0)
      for j = 1, known and #known[CLAIMS] or 0 do
        local its = known[CLAIMS][j]
        looks_left = looks_left - PAIR
        local is_apart = pool and its[MODE] == 'h' and not pool.numbers[its[SLOT]]
        if known[HELD] > WAITS and in_way_of(claim, its[MODE], its[LO], its[HI]) and not is_apart then
          tell(id, expiry_of(r, id))
          break
        end
      end
    end
  end
  for i = 1, #claims do
    local claim = claims[i]
    local lo, hi, modes = claim[LO], claim[HI], modes_of(claim)
    for j = 1, left > 0 and #modes or 0 do
      local class = capital(sub(modes, j, j))
      local from, past = '[' .. class, '(' .. char(byte(class) + 1)
      if r.count[class] and looks_left > 0 then
        looks_left = looks_left - 4 * READ_SET
        look(claim, call('ZRANGE', r.l, from .. lo, '(' .. class .. hi, 'BYLEX', 'LIMIT', 0, 16 + #kin))
        look(claim, call('ZRANGE', r.u, '(' .. class .. lo .. '\255', past, 'BYLEX', 'LIMIT', 0, 64))
        look(claim, call('ZRANGE', r.l, '(' .. class .. lo, from, 'BYLEX', 'REV', 'LIMIT', 0, 64))
        look(claim, call('ZRANGE', r.l, from, past, 'BYLEX', 'LIMIT', 0, 64))
      end
    end
  end
  local waiting, walked = {}, 0
  left = 16
  local function blocks(entry)
    for i = 1, #claims do
      if looks_left <= 0 then
        return false
      end
      looks_left = looks_left - PAIR * #entry / 3
      for j = 1, #entry, 3 do
        local is_apart = pool and entry[j] == 'h' and not is_of_pool(r, entry, pool)
        if in_way_of(claims[i], entry[j], entry[j + 1], entry[j + 2]) and not is_apart then
          return true
        end
      end
    end
  end
  local places_ = number_waiters(r, function(entry)
    waiting[#waiting + 1] = blocks(entry) and entry.id or nil
    walked = walked + 1
    return walked < 64 and looks_left > 0
  end)
  for i = 1, #waiting do
    if left > 0 and looks_left > 0 and record(r, waiting[i]) then
      tell(waiting[i], 0, places_)
    end
  end
  for i = 2, #kin do
    local known = r.count.waiters and record(r, kin[i])
    if known and known[HELD] == WAITS then
      reply[2] = reply[2] - 1
    end
  end
  return reply
end
