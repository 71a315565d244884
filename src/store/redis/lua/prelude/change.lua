-- The changes of sessions: a session is granted its request, or it leaves.

-- Makes a session a holder, and returns its tokens. The session's records are in place.
local function grant(id, at, kin, lease, waited)
  local tokens = {}
  for i = 1, #at do
    local r = at[i]
    local known = r.records[id]
    local claims, fresh = known[CLAIMS], nil
    local old_los, old_his
    if waited then
      old_los, old_his = cuts(id, claims, false)
    end
    for j = 1, #claims do
      local claim = claims[j]
      -- The standing is computed again, because an ancestor's hold may have ended while this claim
      -- waited.
      local how, token = standing(r, claim, kin)
      if how ~= 'included' then
        if not fresh then
          fresh = r.token < now and now or r.token + 1
          r.token = fresh
        end
        token = fresh
      end
      claim[TOKEN] = token
      tokens[claim[INDEX] + 1] = token
      count(r, capital(claim[MODE]), 1)
    end
    local los, his = cuts(id, claims, true, r.epoch)
    count(r, 'sessions', waited and 0 or 1)
    if known[TTL] > 0 then
      count(r, 'leases', waited and 0 or 1)
      call('ZADD', r.e, now + lease, id)
    end
    if waited then
      unqueue(r, id, known)
    end
    known[HELD], known[SINCE] = 1, now
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
  return tokens
end

-- Finds the shares whose ancestors have given up their slots. Such a share outlives the ancestor's
-- slot, and now takes a slot of its own.
local function unshare(r)
  for class = 1, 2 do
    class = sub('Hh', class, class)
    local members = r.count[class] and call('ZRANGE', r.l, '[' .. class, '(' .. char(byte(class) + 1), 'BYLEX') or {}
    for i = 1, #members do
      local id = owner(members[i])
      local known = record(r, id)
      local kin, shares = kin_of(id, known and known[ANCESTORS] or ''), not known
      for j = 2, #kin do
        local above = record(r, kin[j])
        for k = 1, above and above[HELD] == 1 and #above[CLAIMS] or 0 do
          shares = shares or COLUMN[above[CLAIMS][k][MODE]] == 4
        end
      end
      if not shares then
        local held = known[HELD] == 1
        local los, his = cuts(id, known[CLAIMS], held)
        local old = not held and queued(id, known) or {}
        for j = 1, #known[CLAIMS] do
          local claim = known[CLAIMS][j]
          if claim[MODE] == 'h' then
            claim[MODE] = 's'
            count(r, class, -1)
            count(r, held and 'S' or 's', 1)
          end
        end
        change('ZREM', r.l, los)
        change('ZREM', r.u, his)
        put(r, id, known)
        los, his = cuts(id, known[CLAIMS], held, r.epoch)
        change('ZADD', r.l, los)
        change('ZADD', r.u, his)
        if not held then
          requeue(r, id, old, queued(id, known))
        end
      end
    end
  end
end

-- Notes in the past of a resource that a hold has ended.
local function note_end(r, known, outcome, success, limit)
  local token, ended = 0, nil
  for i = 1, #known[CLAIMS] do
    local its = known[CLAIMS][i][TOKEN]
    token = its > token and its or token
  end
  r.past, ended = past_with(r.past, outcome, success, known[ASKED], known[SINCE])
  r.ends = r.ends or {}
  if limit > 0 then
    r.ends[#r.ends + 1] = { r.h, limit, ended, outcome, known[ASKED], known[SINCE], token, pack(known[CLAIMS]), known[FIXED] }
  end
end

-- For the mode of a freed claim, the modes of the waiters that the claim may have blocked.
local FREED = { r = 'w', p = 'pw', w = 'rpwsh', s = 'wsh', h = 'wsh' }

-- Removes sessions. Appends the claims that they held or waited for to `freed`, in the order of
-- sessions and claims. The runs of holders have ended with `outcome`; an empty one leaves no trace.
local function leave(ids, hint, freed, outcome, success, limit)
  local slots = {}
  for i = 1, #ids do
    local id = ids[i]
    local at = places(id, hint)
    local claims, where = claims_of(id, at)
    for j = 1, #claims do
      local claim = claims[j]
      freed[#freed + 1] = { where[j], claim[LO], claim[HI], FREED[claim[MODE]] }
      if COLUMN[claim[MODE]] == 4 then
        slots[where[j]] = true
      end
    end
    for j = 1, #at do
      local r = at[j]
      local known = r.records[id]
      local held = known[HELD] == 1
      local los, his = cuts(id, known[CLAIMS], held)
      if held then
        for k = 1, #known[CLAIMS] do
          local claim = known[CLAIMS][k]
          count(r, capital(claim[MODE]), -1)
          if COLUMN[claim[MODE]] == 4 and claim[SLOTS] ~= r.slots then
            count(r, 'other', -1)
          end
        end
      else
        unqueue(r, id, known)
      end
      change('ZREM', r.l, los)
      change('ZREM', r.u, his)
      if known[TTL] > 0 then
        count(r, 'leases', -1)
      end
      r.is_changed = true
      count(r, 'sessions', -1)
      call('HDEL', r.d, id)
      if known[TTL] > 0 then
        call('ZREM', r.e, id)
      end
      if held and outcome and outcome ~= '' then
        note_end(r, known, outcome, success, limit or known[HISTORY])
      end
      r.records[id] = false
    end
  end
  for r in pairs(slots) do
    unshare(r)
  end
end
