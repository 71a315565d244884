-- The one rule: a request is granted when it conflicts with no holder and with no earlier waiter.
-- The exception: a nested request overtakes a waiter that waits for an ancestor of the request.

-- The modes that clash with a mode. Slots clash when all are taken, which `blocked` counts. A share
-- takes no slot.
local CLASH = { r = 'w', p = 'pw', w = 'rpwsh', s = 'w', h = 'w' }

-- Counts the claims of a class that overlap a span and belong neither to the session nor to an
-- ancestor.
local function strangers(r, class, lo, hi, kin)
  local k = overlapping(r, class, lo, hi)
  for i = 1, k > 0 and #kin or 0 do
    local known = record(r, kin[i])
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

-- Whether two sessions can't hold these claims at the same time, whatever other sessions hold.
local function excludes(held, claim)
  local clash = find(CLASH[claim[MODE]], held[MODE], 1, true) or held[SLOTS] == 1 and claim[SLOTS] == 1
  return clash and overlaps(held[LO], held[HI], claim[LO], claim[HI])
end

-- Whether a waiter of a resource waits for an ancestor of a session, so that it can't be granted
-- before the ancestor ends.
local function is_awaited_above(r, id, kin)
  local known = record(r, id)
  if not known or known[HELD] > WAITS then
    return false
  end
  local own, at = kin_of(id, known[ANCESTORS]), places(id, r)
  for i = 2, #kin do
    for j = 1, own[kin[i]] and 0 or #at do
      local above, claims = record(at[j], kin[i]), at[j].records[id][CLAIMS]
      for k = 1, above and above[HELD] > WAITS and #above[CLAIMS] or 0 do
        for m = 1, #claims do
          if excludes(above[CLAIMS][k], claims[m]) then
            return true
          end
        end
      end
    end
  end
  return false
end

-- Counts the waiting claims ahead of a score that have one of `modes`, overlap a claim and belong
-- to strangers that the session does not overtake. The count stops at `enough`. The queue is walked
-- only if a claim other than this one waits there. Otherwise granting many requests past a long
-- queue would take as long as the product of both lengths.
local function ahead(r, score, modes, claim, kin, enough)
  local lo, hi, some = claim[LO], claim[HI], false
  for i = 1, #modes do
    local mode = sub(modes, i, i)
    local own = mode == claim[MODE] and record(r, kin[1]) and 1 or 0
    some = some or overlapping(r, mode, lo, hi) > own
  end
  local view, found, at = r, 0, first_place(r)
  local tiring = at + long
  while some and found < enough do
    if view == r and at == tiring then
      local few = view_of_few(r, modes, lo, hi)
      if few then
        view, found, at = few, 0, 1
      end
    end
    local entry = waiter(view, at)
    if not entry or entry.score >= score then
      break
    end
    work = work - LOOK
    local here = 0
    for j = 1, (r.left[entry.id] or kin[entry.id]) and 0 or #entry, 3 do
      if find(modes, entry[j], 1, true) and overlaps(entry[j + 1], entry[j + 2], lo, hi) then
        here = here + 1
      end
    end
    if here > 0 and not (#kin > 1 and is_awaited_above(r, entry.id, kin)) then
      found = found + here
    end
    at = at + 1
  end
  return found
end

-- The number of slots that no stranger holds.
local function free_slots(r, claim, kin)
  return claim[SLOTS] - strangers(r, 'S', claim[LO], claim[HI], kin)
end

-- Whether a claim conflicts with a holder.
local function held_against(r, claim, kin)
  local lo, hi, modes = claim[LO], claim[HI], CLASH[claim[MODE]]
  for i = 1, #modes do
    if strangers(r, capital(sub(modes, i, i)), lo, hi, kin) > 0 then
      return true
    end
  end
  -- Slots of another number belong to dead holders, whose leases must end first.
  return claim[MODE] == 's' and (r.count.other or free_slots(r, claim, kin) <= 0)
end

-- Whether a claim conflicts with a holder or, if it is ordinary, with a waiter ahead of `score`.
-- Without a score, all waiters count, unless the session overtakes them.
local function blocked(r, claim, kin, score)
  if held_against(r, claim, kin) then
    return true
  end
  if claim[NESTED] == 1 then
    return false
  end
  local lo, hi, mode = claim[LO], claim[HI], claim[MODE]
  local modes = CLASH[mode]
  if #kin > 1 then
    score = score or math.huge
  end
  for i = 1, score and 0 or #modes do
    if strangers(r, sub(modes, i, i), lo, hi, kin) > 0 then
      return true
    end
  end
  if score and ahead(r, score, modes, claim, kin, 1) > 0 then
    return true
  end
  if mode ~= 's' then
    return false
  end
  local free = free_slots(r, claim, kin)
  return (score and ahead(r, score, 's', claim, kin, free) or strangers(r, 's', lo, hi, kin)) >= free
end
