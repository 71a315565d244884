-- The dead waiters in the way of a request that is made or that shows a sign of life.

-- Maximum number of waiters that one call looks at to find those in the way. Without a limit, a
-- long queue would keep the server from other clients.
local LOOKS = 500
local looks = 0

-- Returns the first waiter that blocks a request, and its resource. Returns nil if a holder blocks
-- the request too: the release of that holder passes over dead waiters anyway. `place` is the
-- number of the request in the queue, if it has one.
local function first_waiter_in_the_way(claims, where, kin, place)
  local found, its
  for i = 1, #claims do
    local r, claim = where[i], claims[i]
    local slots = slots_for(claims, where, i, kin)
    local clash, class = CLASH[claim[MODE]], slots and claim[MODE]
    if held_against(r, claim, kin, slots) then
      return nil
    end
    local at, overtaken = first_place(r), {}
    while not found and looks < LOOKS do
      looks = looks + 1
      local entry = waiter(r, at)
      if not entry or place and entry.score >= place then
        break
      end
      local is_met = false
      for j = 1, (r.left[entry.id] or kin[entry.id]) and 0 or #entry, 3 do
        local is_in_the_way = find(clash, entry[j], 1, true)
          or entry[j] == class and not (slots.pool and not is_of_pool(r, entry, slots.pool))
        is_met = is_met or is_in_the_way and overlaps(entry[j + 1], entry[j + 2], claim[LO], claim[HI])
      end
      if is_met and not (#kin > 1 and overtakes(r, entry, kin, overtaken)) then
        found, its = entry.id, r
      end
      at = at + 1
    end
  end
  return found, its
end

-- Maximum number of dead waiters that one call drops. The client repeats the call for the others.
local DEAD = 100

-- Drops the dead waiters in the way of a request, because a killed waiter must not block others
-- until its heartbeat ends. Appends what they waited for to `freed`. Returns whether anything is
-- still in the way, and the reply if the call has to be repeated before that is known.
local function pass_over_the_dead(claims, where, kin, place, freed)
  local dropped = 0
  local function must_wait()
    for i = 1, #claims do
      if blocked(claims, where, i, kin, place) then
        return true
      end
    end
    return false
  end
  local in_the_way = must_wait()
  while in_the_way do
    local id, r = first_waiter_in_the_way(claims, where, kin, place)
    local known = id and record(r, id)
    -- A waiter that does not listen yet cannot be told from a dead one, and neither can any waiter
    -- if the user may not count subscribers: a message to find out would wake a live waiter each
    -- time.
    if not known or known[LISTENING] ~= 1 or publish == '' or subscribers(known[CHANNEL]) ~= 0 then
      break
    end
    local more = dropped == DEAD and { 'need' } or needed({ id }, true)
    if more then
      return in_the_way, more
    end
    leave({ id }, r, freed)
    in_the_way, dropped = must_wait(), dropped + 1
  end
  return in_the_way
end
