-- The grants to waiters after something was given up.

-- Returns the number of subscribers to the channel itself, not counting patterns. Returns nil if
-- the user lacks the right to ask.
local may_count = true
local function subscribers(channel)
  local reply = may_count and redis.pcall('PUBSUB', publish == 'PUBLISH' and 'NUMSUB' or 'SHARDNUMSUB', channel)
  may_count = reply and not reply.err
  return may_count and reply[2] or nil
end

-- Tells a waiter of its grant. Returns whether a subscriber received the message. PUBLISH also
-- counts subscribers to patterns; SPUBLISH ignores patterns.
local function is_heard(channel)
  return not (publish == 'PUBLISH' and subscribers(channel) == 0) and call(publish, channel, 'granted') > 0
end

-- Grants a waiter's request if nothing conflicts with it. Returns 'granted', 'waits', 'absent' or
-- 'done'. A waiter is absent if it listens and does not receive the message, or if it has lost some
-- of its claims. An absent waiter leaves the queue, and its claims are appended to `freed`. So does
-- a waiter whose job is done, which finds out when it asks again.
local function try(id, hint, freed)
  local at, lost, whole = places(id, hint)
  local known = hint.records[id]
  if known and lost then
    leave({ id }, hint, freed)
    return 'absent'
  end
  if not known or not whole then
    return 'waits'
  end
  local kin = kin_of(id, known[ANCESTORS])
  local claims, where = claims_of(id, at)
  for i = 1, #claims do
    if blocked(where[i], claims[i], kin, rank(known, claims[i])) then
      return 'waits', #claims == 1 and claims[1][MODE] == 's'
    end
  end
  if known[LISTENING] == 1 and publish ~= '' and id ~= caller and not is_heard(known[CHANNEL]) then
    leave({ id }, hint, freed)
    return 'absent'
  end
  if is_done(at[1], known) then
    leave({ id }, hint, freed)
    return 'done'
  end
  grant(id, at, kin, true)
  return 'granted'
end

-- Grants the requests that a freed span lets in, first come, first served. Only waiters that
-- overlap the span in one of `modes` can have become grantable. The walk ends when it has seen all
-- of these waiters. When claims that cover the span have ruled out all of `modes` for later claims,
-- the walk goes on with the waiters that may overtake. It also ends at a waiter whose job is done: it wanted the whole resource, and the walk for
-- its claim, which the function returns, covers the rest of this one.
local function settle_one(r, lo, hi, modes, freed)
  local left, open = 0, 0
  local closed = {}
  for i = 1, #modes do
    local k = overlapping(r, sub(modes, i, i), lo, hi)
    left = left + k
    if k > 0 then
      open = open + 1
    else
      closed[sub(modes, i, i)] = true
    end
  end
  local function close(mode)
    if not closed[mode] and find(modes, mode, 1, true) then
      open = open - 1
    end
    closed[mode] = true
  end
  local at, late = first_place(r), nil
  while left > 0 do
    local entry
    if late then
      entry = table.remove(late, 1)
    else
      entry = waiter(r, at)
    end
    if entry and open == 0 and entry.score >= 0 and not late then
      late = overtakers(r, entry.score)
      entry = table.remove(late, 1)
    end
    if not entry then
      break
    end
    -- A nested claim ignores other waiters, so the walk always looks at it.
    local heeds_all = entry.score >= 0 and not r.count[entry.id]
    local outcome, slot
    for i = 1, r.left[entry.id] and 0 or #entry, 3 do
      local mode = entry[i]
      if find(modes, mode, 1, true) and overlaps(entry[i + 1], entry[i + 2], lo, hi) then
        left = left - 1
        if not (heeds_all and closed[mode]) then
          if not outcome then
            outcome, slot = try(entry.id, r, freed)
            if outcome == 'done' then
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

-- `freed` grows while absent waiters leave.
local function settle(freed)
  local i = 1
  while freed[i] do
    local next = freed[i]
    while next do
      next = settle_one(next[1], next[2], next[3], next[4], freed)
    end
    i = i + 1
  end
end
