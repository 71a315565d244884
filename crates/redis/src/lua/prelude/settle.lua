-- The grants to waiters after something was given up.

-- Whether all of these names are declared.
local function are_declared(names)
  for i = 1, #names do
    if not by_name[names[i]] then
      return false
    end
  end
  return true
end

local function are_slots(claims)
  for i = 1, #claims do
    if claims[i][MODE] ~= 's' then
      return false
    end
  end
  return true
end

-- Grants a waiter's request if nothing conflicts with it. Returns 'granted', 'waits', 'undeclared',
-- 'absent' or 'done'. An undeclared waiter has resources that the script needs and that are not
-- declared: its own, or beside waiters for several resources those of its ancestors. A waiter is
-- absent if it listens and does not receive the message, or if it has lost some of its claims. An
-- absent waiter leaves the queue, and its claims are appended to `freed`. So does a waiter whose
-- job is done, which finds out when it asks again.
local function try(id, hint, freed)
  local at, lost, whole = places(id, hint)
  local known = hint.records[id]
  if known and lost then
    leave({ id }, hint, freed)
    return 'absent'
  end
  if not known then
    return 'waits'
  end
  local is_linked = false
  for i = 1, #at do
    is_linked = is_linked or at[i].count.linked
  end
  if not whole or is_linked and known[ANCESTORS] ~= '' and not are_declared(known[HELD_ABOVE]) then
    return 'undeclared'
  end
  local kin = kin_of(id, known[ANCESTORS])
  local claims, where = claims_of(id, at)
  work = work - TRY * #claims
  for i = 1, #claims do
    if blocked(claims, where, i, kin, known[SEQ]) then
      return 'waits', #at == 1 and are_slots(claims)
    end
  end
  if known[LISTENING] == 1 and publish ~= '' and id ~= caller and not is_heard(known[CHANNEL]) then
    leave({ id }, hint, freed)
    return 'absent'
  end
  if done_by(at[1], known) then
    leave({ id }, hint, freed)
    return 'done'
  end
  grant(id, at, kin, true)
  work, has_granted = work - GRANT * #claims, true
  return 'granted'
end

-- Grants the requests that a freed span lets in, first come, first served. Only waiters that
-- overlap the span in one of the walk's modes can have become grantable. The walk ends when it has
-- seen all of these waiters. When claims that cover the span have ruled out all of the modes for
-- later claims, the walk goes on with the waiters that may overtake. It also ends at a waiter whose
-- job is done: it wanted the whole resource, and the walk for its claim, which the function
-- returns, covers the rest of this one. The second value is true if the work of this call is done
-- before the walk ends, or if the walk comes to an undeclared waiter. The walk then has what
-- another call needs to go on.
local function settle_one(walk, freed)
  local r, lo, hi, modes, left = walk[WHERE], walk[FROM], walk[TO], walk[MODES], walk[AHEAD_OF_IT]
  local closed, open = {}, #modes
  local function close(mode)
    if not closed[mode] and find(modes, mode, 1, true) then
      open, closed[mode] = open - 1, true
    end
  end
  for i = 1, left and #walk[CLOSED] or 0 do
    close(sub(walk[CLOSED], i, i))
  end
  for i = 1, left and 0 or #modes do
    local k = overlapping(r, sub(modes, i, i), lo, hi)
    left = (left or 0) + k
    if k == 0 then
      close(sub(modes, i, i))
    end
  end
  left = left or 0
  local few = not walk[NEXT] and (r.count.waiters or 0) > long and view_of_few(r, modes, lo, hi)
  local view = few or walk[NEXT] and view_from(r, walk[NEXT]) or r
  local at, late, last, left_of_last = view == r and first_place(r) or 1, nil, nil, left
  -- The next call begins with the first waiter that has this number.
  local function cut(score, its_left)
    local ruled_out = ''
    for mode in pairs(closed) do
      ruled_out = ruled_out .. mode
    end
    walk[AHEAD_OF_IT], walk[NEXT], walk[CLOSED] = its_left, score, ruled_out
    return walk, true
  end
  while left > 0 do
    local entry
    if late then
      entry = table.remove(late, 1)
    else
      entry = waiter(view, at)
    end
    if entry and open == 0 and not late then
      late = overtakers(r, entry.score)
      entry = table.remove(late, 1)
    end
    if not entry then
      break
    end
    if entry.score ~= last then
      -- Each call looks at one waiter at least.
      if work <= 0 and has_looked then
        return cut(entry.score, left)
      end
      last, left_of_last = entry.score, left
    end
    has_looked = true
    local heeds_all = not r.count[entry.id]
    local outcome, slot
    for i = 1, r.left[entry.id] and 0 or #entry, 3 do
      local mode = entry[i]
      if find(modes, mode, 1, true) and overlaps(entry[i + 1], entry[i + 2], lo, hi) then
        left = left - 1
        if not (heeds_all and closed[mode]) then
          if not outcome then
            outcome, slot = try(entry.id, r, freed)
            if outcome == 'undeclared' then
              return cut(entry.score, left_of_last)
            elseif outcome == 'done' then
              return table.remove(freed)
            end
          end
          if outcome ~= 'absent' and covers(entry[i + 1], entry[i + 2], lo, hi) then
            for j = 1, #CLASH[mode] do
              close(sub(CLASH[mode], j, j))
            end
            if slot then
              close('s')
            end
          end
        end
      end
    end
    at = at + 1
  end
end

-- Puts off the walks from one on, until the next call for their resources. Each walk gets its
-- number, by which that call finds their order. Too many walks become one.
local put_off_so_far = 0
local function put_off(freed, from)
  for i = from, #freed do
    local walk, r = freed[i], freed[i][WHERE]
    local has_shares = r.count.H or r.count.h
    put_off_so_far = put_off_so_far + 1
    if walk[TO] and r.count.waiters or not walk[TO] and has_shares then
      r.walks, r.is_changed = r.walks or {}, true
      walk[WHERE] = put_off_so_far
      local previous = r.walks[#r.walks]
      if #r.walks >= WALKS_MAX then
        r.walks = { { r.walks[1][WHERE], '\0', '\255', 'rpwsh' }, has_shares and { r.walks[1][WHERE], '' } }
      elseif not previous or walk[NEXT] or previous[NEXT] or previous[FROM] ~= walk[FROM] or previous[TO] ~= walk[TO]
        or previous[MODES] ~= walk[MODES] then
        r.walks[#r.walks + 1] = walk
      end
    end
  end
end

-- Lets a waiter continue the walk that this call puts off, unless the call has granted a request:
-- the claim of a grant continues, too.
local function wake_another(walk)
  local r, at = walk[WHERE], 1
  local view = view_from(r, walk[NEXT])
  while not has_granted and at <= 16 do
    local entry = waiter(view, at)
    local known = entry and record(r, entry.id)
    if not entry or known and known[LISTENING] == 1 and publish ~= '' and is_heard(known[CHANNEL]) then
      break
    end
    at = at + 1
  end
end

-- Carries out walks, as far as the work of this call goes. `freed` grows while absent waiters
-- leave.
local function settle(freed)
  local i = 1
  -- A share that outlives its slot takes a slot, so shares come before all grants.
  while freed[i] do
    if freed[i][TO] then
      i = i + 1
    elseif unshare(freed[i]) then
      return put_off(freed, 1)
    else
      table.remove(freed, i)
    end
  end
  i = 1
  while freed[i] do
    local next, is_cut = freed[i], false
    while next and not is_cut do
      freed[i] = next
      next, is_cut = settle_one(next, freed)
    end
    if is_cut then
      wake_another(next)
      return put_off(freed, i)
    end
    i = i + 1
  end
end
