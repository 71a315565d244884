-- The one rule: a request is granted when it conflicts with no holder and with no earlier waiter.
-- The exception: a nested request overtakes a waiter that waits for an ancestor of the request, and
-- a waiter behind an overtaken one.

-- The modes that clash with a mode. Slots clash when all are taken, which `blocked` counts. A share
-- takes no slot.
local CLASH = CLASHING_MODES

-- Counts the claims of a class that overlap a span and belong neither to the session nor to an
-- ancestor, nor to a waiter that the request supersedes.
local function strangers(r, class, lo, hi, kin)
  local k, rivals = overlapping(r, class, lo, hi), kin.rivals or {}
  for i = 1, k > 0 and #kin + #rivals or 0 do
    local known = record(r, kin[i] or rivals[i - #kin])
    for j = 1, known and #known[CLAIMS] or 0 do
      local claim = known[CLAIMS][j]
      local its = known[HELD] > WAITS and capital(claim[MODE]) or claim[MODE]
      if its == class and overlaps(claim[LO], claim[HI], lo, hi) then
        k = k - 1
      end
    end
  end
  return k
end

-- The number of slots that a session states for a resource. If all states the same, no record is
-- read.
local function slots_of(r, id)
  local known = r.count.other and record(r, id)
  for i = 1, known and #known[CLAIMS] or 0 do
    if known[CLAIMS][i][SLOTS] > 0 then
      return known[CLAIMS][i][SLOTS]
    end
  end
  return r.slots
end

-- Whether the record is that of a session that holds its claims.
local function is_holder(known)
  return known and known[HELD] > WAITS
end

-- The claims of a session on a resource, with one for all of its slots, and how many slots the
-- session takes. A share takes none.
local function parts_of(claims)
  local parts, taken = {}, 0
  for i = 1, #claims do
    local is_slot = claims[i][MODE] == 's'
    parts[#parts + 1] = not (is_slot and taken > 0) and claims[i] or nil
    taken = taken + (is_slot and 1 or 0)
  end
  return parts, taken
end

-- The same for an entry of the queue.
local function parts_in(r, entry)
  local claims, slots = {}, nil
  for i = 1, #entry, 3 do
    slots = slots or entry[i] == 's' and slots_of(r, entry.id)
    claims[#claims + 1] = { [MODE] = entry[i], [LO] = entry[i + 1], [HI] = entry[i + 2], [SLOTS] = entry[i] == 's' and slots or 0 }
  end
  return parts_of(claims)
end

-- Whether two sessions can't have these claims at the same time, whatever other sessions hold. The
-- sessions take so many slots of the resource.
local function excludes(one, taken, other, needs)
  local is_full = one[MODE] == 's' and other[MODE] == 's' and taken + needs > math.min(one[SLOTS], other[SLOTS])
  return (is_full or find(CLASH[other[MODE]], one[MODE], 1, true)) and overlaps(one[LO], one[HI], other[LO], other[HI])
end

-- Whether one of a session's claims excludes a claim of another session.
local function any_excludes(parts, taken, other, needs)
  for i = 1, #parts do
    if excludes(parts[i], taken, other, needs) then
      return true
    end
  end
  return false
end

-- Whether a waiter heeds a waiter ahead of it that waits for what a session holds of the resource.
-- The function looks at the first HEADS_AHEAD waiters.
local function is_held_up(r, id, above)
  local own, at, looks = record(r, id), first_place(r), 0
  local held, taken = parts_of(record(r, above)[CLAIMS])
  local asked, needs = parts_of(own[CLAIMS])
  local entry = not r.count[id] and waiter(r, at)
  while entry and entry.score < own[SEQ] and looks < HEADS_AHEAD do
    looks = looks + (r.left[entry.id] and 0 or 1)
    local is_below = entry.is_nested and kin_of(entry.id, record(r, entry.id)[ANCESTORS])[above]
    local parts, its = {}, 0
    if not is_below and not r.left[entry.id] then
      parts, its = parts_in(r, entry)
    end
    for i = 1, #parts do
      if any_excludes(held, taken, parts[i], its) and any_excludes(asked, needs, parts[i], its) then
        return true
      end
    end
    work, at = work - LOOK, at + 1
    entry = waiter(r, at)
  end
  return false
end

-- Returns the ancestor of a session that a waiter of a resource waits for, or that a waiter waits
-- for which this one heeds in the queue of the same resource. The waiter can't be granted before
-- that ancestor ends.
local function awaited_above(r, id, kin)
  local known = record(r, id)
  if not known or known[HELD] > WAITS then
    return nil
  end
  local own, at = kin_of(id, known[ANCESTORS]), places(id, r)
  for i = 2, #kin do
    for j = 1, own[kin[i]] and 0 or #at do
      local above = record(at[j], kin[i])
      if is_holder(above) then
        local held, taken = parts_of(above[CLAIMS])
        local asked, needs = parts_of(at[j].records[id][CLAIMS])
        for k = 1, #asked do
          if any_excludes(held, taken, asked[k], needs) then
            return kin[i]
          end
        end
      end
    end
    for j = 1, own[kin[i]] and 0 or #at do
      if is_holder(record(at[j], kin[i])) and is_held_up(at[j], id, kin[i]) then
        return kin[i]
      end
    end
  end
end

-- Whether a nested request overtakes the next waiter of a walk from the head of the queue: a waiter
-- that waits for an ancestor of the request, or one that heeds an overtaken one, unless the
-- ancestor is around it. `overtaken` has the claims of the overtaken waiters so far, each with the
-- number of slots that its session takes and the ancestor that has to end before. A session that
-- waits already overtakes nobody unless it is noted in the queue.
local function overtakes(r, entry, kin, overtaken)
  local own, ancestor = nil, nil
  if not r.count[kin[1]] and record(r, kin[1]) then
    return nil
  end
  local parts, needs = parts_in(r, entry)
  for i = 1, r.count[entry.id] and 0 or #overtaken do
    local its, taken, above = unpack(overtaken[i])
    for j = 1, ancestor and 0 or #parts do
      if excludes(its, taken, parts[j], needs) then
        own = own or entry.is_nested and kin_of(entry.id, record(r, entry.id)[ANCESTORS]) or {}
        ancestor = not own[above] and above or nil
      end
    end
  end
  ancestor = ancestor or awaited_above(r, entry.id, kin)
  for i = 1, ancestor and #parts or 0 do
    local its = parts[i]
    local name = table.concat({ its[MODE], its[LO], its[HI], its[SLOTS], needs, ancestor }, ' ')
    if not overtaken[name] and #overtaken < OVERTAKEN_MAX then
      overtaken[name], overtaken[#overtaken + 1] = true, { its, needs, ancestor }
    end
  end
  return ancestor
end

-- Counts more taken slots of a claim, of which those who take them state this number.
local function take(slots, k, limit)
  slots.taken, slots.limit = slots.taken + k, math.min(slots.limit, limit)
end

local function is_full(slots)
  return slots.taken + slots.needs > slots.limit
end

-- Whether an entry of the queue, as far as it has shares, takes from a pool.
local function is_of_pool(r, entry, pool)
  local known = record(r, entry.id)
  local kin = kin_of(entry.id, known and known[ANCESTORS] or '')
  for i = 2, kin[pool.holder] and #kin or 0 do
    local above = kin[i] ~= pool.holder and record(r, kin[i])
    for j = 1, above and above[HELD] > WAITS and #above[CLAIMS] or 0 do
      if above[CLAIMS][j][SLOT] then
        return false
      end
    end
    if kin[i] == pool.holder then
      return true
    end
  end
  return false
end

-- Whether the waiters ahead of a score block a claim: one that clashes with it, or so many waiters
-- for slots that `slots` are full, if it needs one. Waiters that the session overtakes do not
-- count. The queue is walked only if a claim other than this one waits there. Otherwise granting
-- many requests past a long queue would take as long as the product of both lengths. For the same
-- reason the walk ends when everybody behind heeds overtaken waiters, unless some of them may
-- overtake these.
local function heeds_any(r, score, claim, kin, slots)
  local lo, hi, open, left = claim[LO], claim[HI], {}, 0
  local clash, own = CLASH[claim[MODE]], record(r, kin[1])
  local pool, class = slots and slots.pool, slots and (slots.pool and 'h' or 's') or ''
  local modes = clash .. class
  for i = 1, #modes do
    local mode = sub(modes, i, i)
    open[mode] = overlapping(r, mode, lo, hi) > (mode == claim[MODE] and own and 1 or 0)
    left = left + (open[mode] and 1 or 0)
  end
  local others_nest = left > 0 and (r.count.nested or 0) > (#kin > 1 and own and #own[CLAIMS] or 0)
  local view, overtaken, at, held, limit = r, {}, first_place(r), slots and slots.taken, slots and slots.limit
  local tiring = at + long
  while left > 0 or others_nest do
    if view == r and at == tiring then
      local few = view_of_few(r, modes, lo, hi)
      if few then
        view, overtaken, at = few, {}, 1
        if slots then
          slots.taken, slots.limit = held, limit
        end
      end
    end
    local entry = waiter(view, at)
    if not entry or entry.score >= score then
      break
    end
    work = work - LOOK
    local clashes, takes = false, 0
    for j = 1, (r.left[entry.id] or kin[entry.id]) and 0 or #entry, 3 do
      if find(modes, entry[j], 1, true) and overlaps(entry[j + 1], entry[j + 2], lo, hi) then
        clashes = clashes or find(clash, entry[j], 1, true)
        takes = takes + (entry[j] == class and 1 or 0)
      end
    end
    if pool and takes > 0 and not is_of_pool(r, entry, pool) then
      takes = 0
    end
    local is_overtaken = (clashes or takes > 0) and #kin > 1 and overtakes(r, entry, kin, overtaken)
    for j = 1, is_overtaken and #entry or 0, 3 do
      for k = 1, covers(entry[j + 1], entry[j + 2], lo, hi) and #CLASH[entry[j]] or 0 do
        local mode = sub(CLASH[entry[j]], k, k)
        left, open[mode] = left - (open[mode] and 1 or 0), false
      end
    end
    if (clashes or takes > 0) and not is_overtaken then
      if slots and takes > 0 then
        take(slots, takes, pool and slots.limit or slots_of(r, entry.id))
      end
      if clashes or is_full(slots) then
        return true
      end
    end
    at = at + 1
  end
  return false
end

-- Notes the claims of a class that take slots: so many are taken more, and the smallest number of
-- slots counts that one of them states.
local function note_takers(r, class, slots, claim, kin)
  local k, from = strangers(r, class, claim[LO], claim[HI], kin), '[' .. class
  if k > 0 then
    take(slots, k, r.count.other and slots.limit or r.slots)
  end
  while k > 0 and r.count.other and not is_full(slots) do
    local members = call('ZRANGE', r.l, from, '(' .. char(byte(class) + 1), 'BYLEX', 'LIMIT', 0, BATCH)
    for i = 1, #members do
      local id = owner(members[i])
      take(slots, 0, kin[id] and slots.limit or slots_of(r, id))
    end
    k, from = #members == BATCH and k or 0, '(' .. members[#members]
  end
end

-- Whether a claim conflicts with a holder. `slots` has what the claim needs of the slots, if it
-- needs some.
local function held_against(r, claim, kin, slots)
  local lo, hi, modes = claim[LO], claim[HI], CLASH[claim[MODE]]
  for i = 1, #modes do
    if strangers(r, capital(sub(modes, i, i)), lo, hi, kin) > 0 then
      return true
    end
  end
  if slots and slots.pool then
    local _, k = taken_of(r, slots.pool, kin, slots.limit)
    take(slots, k, slots.limit)
  elseif slots then
    note_takers(r, 'S', slots, claim, kin)
  end
  return slots and is_full(slots)
end

-- What one of the claims of a request needs of the slots of its resource, or of the pool of an
-- ancestor, if it needs some: as many as there are such claims in the request.
local function slots_for(claims, where, i, kin)
  local needs, mode = 0, claims[i][MODE]
  local pool = mode == 'h' and pool_of(where[i], kin)
  if COLUMN[mode] ~= 4 or mode == 'h' and not (pool and pool.count > 1) then
    return nil
  end
  for j = 1, #claims do
    needs = needs + (where[j] == where[i] and claims[j][MODE] == mode and 1 or 0)
  end
  local limit = pool and pool.count or claims[i][SLOTS]
  return { taken = 0, needs = math.min(needs, limit), limit = limit, pool = pool }
end

-- Whether a claim conflicts with a holder or with a waiter ahead of `score`. Without a score, all
-- waiters count, unless the session overtakes them. The claim is one of those of its request.
local function blocked(claims, where, i, kin, score)
  local r, claim, slots = where[i], claims[i], slots_for(claims, where, i, kin)
  -- The claims of several slots of a resource come one after another, and need the same.
  if slots and i > 1 and where[i - 1] == r and claims[i - 1][MODE] == claim[MODE] then
    return false
  end
  if held_against(r, claim, kin, slots) then
    return true
  end
  local lo, hi, mode = claim[LO], claim[HI], claim[MODE]
  if score or #kin > 1 then
    return heeds_any(r, score or math.huge, claim, kin, slots)
  end
  local modes = CLASH[mode]
  for i = 1, #modes do
    if strangers(r, sub(modes, i, i), lo, hi, kin) > 0 then
      return true
    end
  end
  if slots then
    note_takers(r, 's', slots, claim, kin)
  end
  return slots and is_full(slots)
end
