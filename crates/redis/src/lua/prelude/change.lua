-- The changes of sessions: a session is granted its request, or it leaves.

-- Counts a claim that comes or goes by the number of slots that it states. `r.slots` is the number
-- of the first one.
local function count_slots(r, claim, by)
  if COLUMN[claim[MODE]] == 4 then
    r.slots = (r.count.S or r.count.s or r.count.H or r.count.h) and r.slots or claim[SLOTS]
    count(r, 'other', claim[SLOTS] ~= r.slots and by or 0)
  end
end

-- Returns the smallest number that no held slot of a resource has. A share has a number of an
-- ancestor's. The search goes on behind the last number that this call has given: no number before is
-- free, unless the call gives up a slot.
local function free_slot(r)
  local number = r.first_free or 0
  local from = '[S' .. (number > 0 and '\0' .. format('%08x', number) or '')
  while true do
    local members = r.count.S and call('ZRANGE', r.l, from, '(T', 'BYLEX', 'LIMIT', 0, 64) or {}
    for i = 1, #members do
      local taken = tonumber(sub(members[i], 3, 10), 16)
      if taken > number then
        break
      end
      number = taken + 1
    end
    if #members < 64 or tonumber(sub(members[64], 3, 10), 16) > number then
      return number
    end
    from = '(' .. members[64]
  end
end

-- Makes a session a holder. The session's records are in place.
local function grant(id, at, kin, waited)
  local last = past_of(at[1])[OUTCOME]
  for i = 1, #at do
    local r = at[i]
    local known = r.records[id]
    now, known[LAST] = r.now, last
    end_streak(r, known)
    local claims, fresh, slots, number = known[CLAIMS], nil, 0, -1
    for j = 1, #claims do
      slots = slots + (COLUMN[claims[j][MODE]] == 4 and 1 or 0)
    end
    local taken
    local old_los, old_his
    if waited then
      old_los, old_his = cuts(id, claims, false)
    end
    for j = 1, #claims do
      local claim = claims[j]
      -- The standing is computed again, because an ancestor's hold may have ended while this claim
      -- waited.
      local how, token, pool = standing(r, claim, kin, slots)
      if how ~= 'included' then
        if not fresh then
          fresh = next_token(r.token)
          r.token = fresh
        end
        token = fresh
      end
      claim[TOKEN] = token
      if COLUMN[claim[MODE]] == 4 then
        if claim[MODE] == 'h' and pool then
          taken = taken or pool.count > 1 and taken_of(r, pool, kin, math.huge) or {}
          repeat
            number = number + 1
          until number > pool.high or pool.numbers[number] and not taken[number]
          claim[SLOT] = number <= pool.high and number or nil
        end
        if not claim[SLOT] then
          claim[SLOT] = free_slot(r)
          r.first_free = claim[SLOT] + 1
        end
      end
      if not waited then
        count_slots(r, claim, 1)
      end
      count(r, capital(claim[MODE]), 1)
    end
    local los, his = cuts(id, claims, true, r.epoch)
    local was_leased, expiry = waited and expires(known), hold(known, waited)
    count(r, 'sessions', waited and 0 or 1)
    if expires(known) then
      count(r, 'leases', was_leased and 0 or 1)
      call('ZADD', r.e, expiry, id)
    end
    if waited then
      unqueue(r, id, known)
    end
    known[SINCE] = now
    put(r, id, known)
    -- The new members come before the removals. Otherwise l and u could become empty and vanish in
    -- between, and a migrating slot would look for them on the other server.
    change('ZADD', r.l, los)
    change('ZADD', r.u, his)
    if waited then
      change('ZREM', r.l, old_los)
      change('ZREM', r.u, old_his)
    end
  end
end

-- Keeps l and u of a resource in place until `finish` if its only session changes or leaves.
local function fill(r)
  if r.count.sessions == 1 then
    r.is_filled = true
    call('ZADD', r.l, r.epoch, '')
    call('ZADD', r.u, r.epoch, '')
  end
end

-- Turns a share into a slot of its own if no ancestor of its session has a slot any more: the share
-- outlives the slot.
local function unshare_one(r, id)
  local known = record(r, id)
  local kin = kin_of(id, known and known[ANCESTORS] or '')
  for i = 2, known and #kin or 0 do
    local above = record(r, kin[i])
    for j = 1, above and above[HELD] > WAITS and #above[CLAIMS] or 0 do
      if COLUMN[above[CLAIMS][j][MODE]] == 4 then
        return
      end
    end
  end
  if not known then
    return
  end
  local held = known[HELD] > WAITS
  local los, his = cuts(id, known[CLAIMS], held)
  local old = not held and queued(id, known)
  for i = 1, #known[CLAIMS] do
    local claim = known[CLAIMS][i]
    if claim[MODE] == 'h' then
      claim[MODE] = 's'
      count(r, held and 'H' or 'h', -1)
      count(r, held and 'S' or 's', 1)
    end
  end
  fill(r)
  change('ZREM', r.l, los)
  change('ZREM', r.u, his)
  put(r, id, known)
  los, his = cuts(id, known[CLAIMS], held, r.epoch)
  change('ZADD', r.l, los)
  change('ZADD', r.u, his)
  if not held then
    requeue(r, id, old, known)
  end
end

-- Looks at the shares that a slot may leave behind, which has this number, and at the waiting
-- shares, which have none. Without a number, looks at all shares. Every share has an ancestor with
-- a slot that is no share, so nothing else that leaves concerns a share. Returns whether the work
-- of this call is done before.
local function unshare(walk)
  local r = walk[WHERE]
  local number = walk[FROM] ~= '' and '\0' .. format('%08x', walk[FROM]) or ''
  local from = walk[NEXT] or '[H' .. number
  while true do
    local class = sub(from, 2, 2)
    local past = class == 'H' and number ~= '' and '(H' .. number .. '\255' or '(' .. char(byte(class) + 1)
    local members = r.count[class] and call('ZRANGE', r.l, from, past, 'BYLEX', 'LIMIT', 0, BATCH) or {}
    for i = 1, #members do
      if work <= 0 and has_looked then
        walk[NEXT] = from
        return true
      end
      work, has_looked = work - TRY, true
      unshare_one(r, owner(members[i]))
      from = '(' .. members[i]
    end
    if #members < BATCH then
      if class == 'h' then
        return false
      end
      from = '[h'
    end
  end
end

-- Notes in the past of a resource that a session leaves. Waits, and grants that nobody has claimed,
-- leave nothing behind, because no command ran: unless `run` tells how one ended, which only a
-- release does.
local function note_leaving(r, id, known, leaving, run)
  if known[HELD] == WAITS or not leaving or not run and is_unclaimed(r, id, known) then
    return
  end
  local past = changed_past(r)
  -- A lease ends at its end, which may be noticed later.
  now = leaving == 'expired' and math.min(r.now, expiry_of(r, id)) or r.now
  count_end(past, known[SINCE])
  add_to(past, WAITED, known[SINCE] - known[ASKED])
  if known[HELD] == KEPT and known[KEEP_FOR] == 0 then
    -- The release has noted the run already.
  elseif run then
    note_run(r, known, run.outcome, run.success, run.limit)
  elseif leaving ~= 'released' then
    note_run(r, known, leaving == 'expired' and known[HELD] == KEPT and 'kept' or leaving, false, known[HISTORY])
  end
  now = r.now
end

-- For the mode of a freed claim, the modes of the waiters that the claim may have blocked.
local FREED = { r = 'w', p = 'pw', w = 'rpwsh', s = 'wsh', h = 'wsh' }

-- Removes sessions. Appends the claims that they held or waited for to `freed`, in the order of
-- sessions and claims, and the slots that may leave shares behind. The holders have `released`,
-- have `expired` or are `broken`; without a word for it, they leave no trace. `run` tells how the
-- command of a holder ended, if that is known.
local function leave(ids, hint, freed, leaving, run)
  for i = 1, #ids do
    local id = ids[i]
    local at = places(id, hint)
    local claims, where = claims_of(id, at)
    work = work - GRANT * #claims
    for j = 1, #claims do
      local claim = claims[j]
      freed[#freed + 1] = { where[j], claim[LO], claim[HI], FREED[claim[MODE]] }
      if claim[MODE] == 's' and where[j].records[id][HELD] > WAITS then
        freed[#freed + 1], where[j].first_free = { where[j], claim[SLOT] }, nil
      end
    end
    for j = 1, #at do
      local r = at[j]
      local known = r.records[id]
      local held = known[HELD] > WAITS
      note_leaving(r, id, known, leaving, run)
      local los, his = cuts(id, known[CLAIMS], held)
      if held then
        for k = 1, #known[CLAIMS] do
          local claim = known[CLAIMS][k]
          count_slots(r, claim, -1)
          count(r, capital(claim[MODE]), -1)
        end
      else
        for k = 1, #known[CLAIMS] do
          count_slots(r, known[CLAIMS][k], -1)
        end
        unqueue(r, id, known)
      end
      if resources.adds then
        fill(r)
      end
      change('ZREM', r.l, los)
      change('ZREM', r.u, his)
      if expires(known) then
        count(r, 'leases', -1)
      end
      r.is_changed = true
      count(r, 'sessions', -1)
      call('HDEL', r.d, id)
      if expires(known) then
        call('ZREM', r.e, id)
      end
      r.records[id] = false
    end
  end
end
