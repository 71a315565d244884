-- The queue of a resource: q has a member for each waiting session, or two if the session has both
-- nested and ordinary claims. A member contains the session and everything that decides whether one
-- of its claims conflicts, so a walk through the queue reads no records. The scores are the numbers
-- of the requests. The scores of nested claims lie below zero, ahead of all others. The epoch has
-- the score -inf.

local function rank(known, claim)
  return known[SEQ] - (claim[NESTED] == 1 and AHEAD or 0)
end

-- Returns the members of a session with their scores: score, member, score, member.
local function queued(id, known)
  local found, place = {}, {}
  for i = 1, #known[CLAIMS] do
    local claim = known[CLAIMS][i]
    local lo, hi, score = claim[LO], claim[HI], rank(known, claim)
    local k = place[score]
    if not k then
      k = #found + 2
      found[k - 1], found[k], place[score] = score, { id }, k
    end
    found[k][#found[k] + 1] = claim[MODE] .. format('%04x%04x', #lo, #hi) .. lo .. hi
  end
  for k = 2, #found, 2 do
    found[k] = table.concat(found[k])
  end
  return found
end

-- Removes a session from the queue. The record is removed or changed later, so that every place
-- always has a record.
local function unqueue(r, id, known)
  local members = queued(id, known)
  for i = 2, #members, 2 do
    call('ZREM', r.q, members[i])
  end
  count(r, 'places', -#members / 2)
  for i = 1, #known[CLAIMS] do
    count(r, known[CLAIMS][i][MODE], -1)
    if known[CLAIMS][i][NESTED] == 1 then
      count(r, 'nested', -1)
    elseif known[ANCESTORS] ~= '' then
      count(r, 'below', -1)
    end
  end
  count(r, 'waiters', -1)
  if r.count[id] then
    count(r, id, -1)
  end
  if not r.count.waiters then
    call('ZREM', r.q, r.epoch)
  end
  if known[NAMES] then
    count(r, 'linked', -1)
  end
  r.left[id] = true
end

local function read_member(member, score)
  local entry = { id = sub(member, 1, 32), score = score }
  local at_mode = 33
  while at_mode <= #member do
    local at_lo = at_mode + 9
    local at_hi = at_lo + tonumber(sub(member, at_mode + 1, at_mode + 4), 16)
    local past = at_hi + tonumber(sub(member, at_mode + 5, at_mode + 8), 16)
    local k = #entry
    entry[k + 1], entry[k + 2], entry[k + 3] = sub(member, at_mode, at_mode), sub(member, at_lo, at_hi - 1), sub(member, at_hi, past - 1)
    at_mode = past
  end
  return entry
end

-- Returns the waiter at a place of the queue, or nil behind the last place. Places count from the
-- script's first look at the queue; waiters that have left since are in `left`. The queue is read
-- in growing batches, so that the first batch costs little and few calls read a long queue. Each
-- batch begins with the last score of the batch before. So if two waiters have the same number,
-- neither is left out. `r` is the resource, or the view of a part of its queue.
local function waiter(r, at)
  while not r.view[at] and not r.all do
    local page = call('ZRANGE', r.q, r.after or '(-inf', '+inf', 'BYSCORE', 'LIMIT', 0, r.batch, 'WITHSCORES')
    r.all = #page < 2 * r.batch
    r.batch = r.batch < BATCH and 2 * r.batch or BATCH
    work = work - READ * #page / 2
    for i = 1, #page, 2 do
      local entry = read_member(page[i], tonumber(page[i + 1]))
      local place = entry.id .. (entry.score < 0 and '1' or '0')
      if not r.seen[place] then
        r.view[#r.view + 1], r.seen[place], r.after = entry, true, page[i + 1]
      end
    end
  end
  return r.view[at]
end

-- Forgets what was read of the queue, because a session has joined it.
local function reread(r)
  r.view, r.seen, r.first, r.batch, r.after, r.all = {}, {}, 1, 2, nil, nil
end

-- Returns a view of the queue from a number on.
local function view_from(r, score)
  r.part = { q = r.q, view = {}, seen = {}, batch = 2, after = score }
  return r.part
end

-- Returns a view of the waiters that overlap a span in one of `modes`, found by their cuts: these
-- lie within the span, or the claim begins where the resource begins. Returns nil if there are too
-- many, or if a claim surrounds the span in another way.
local function view_of_few(r, modes, lo, hi)
  local known, entries = {}, {}
  for i = 1, #modes do
    local mode, seen = sub(modes, i, i), {}
    local k = overlapping(r, mode, lo, hi)
    if k > NEAR_MAX then
      return nil
    end
    local function look(set, from, past)
      local members = k > 0 and call('ZRANGE', set, from, past, 'BYLEX', 'LIMIT', 0, NEAR_MAX) or {}
      for j = 1, #members do
        local id, its = owner(members[j]), sub(members[j], -36)
        known[id] = known[id] or record(r, id)
        for m = 1, not seen[its] and known[id] and #known[id][CLAIMS] or 0 do
          local claim = known[id][CLAIMS][m]
          if claim[INDEX] == tonumber(sub(its, -4), 16) and overlaps(claim[LO], claim[HI], lo, hi) then
            k, seen[its] = k - 1, true
          end
        end
      end
    end
    look(r.l, '[' .. mode .. lo, '(' .. mode .. hi)
    look(r.u, '(' .. mode .. lo .. '\255', '(' .. mode .. hi .. '\255')
    look(r.l, '[' .. mode .. '\0', '(' .. mode .. '\0\255')
    if k > 0 then
      return nil
    end
  end
  for id, its in pairs(known) do
    local members = queued(id, its)
    for i = 1, #members, 2 do
      entries[#entries + 1] = read_member(members[i + 1], members[i])
      entries[#entries].member = members[i + 1]
    end
  end
  work = work - READ * #entries
  table.sort(entries, function(a, b)
    return a.score < b.score or a.score == b.score and before(a.member, b.member)
  end)
  return { view = entries, all = true }
end

-- Turns the shares that a session waits for into slots, in q and in the parts of the queue already
-- read.
local function requeue(r, id, old, new)
  for i = 1, #old, 2 do
    if old[i + 1] ~= new[i + 1] then
      call('ZADD', r.q, new[i], new[i + 1])
      call('ZREM', r.q, old[i + 1])
    end
  end
  local function turn(view)
    for i = 1, #view do
      local entry = view[i]
      for j = 1, entry.id == id and #entry or 0, 3 do
        entry[j] = entry[j] == 'h' and 's' or entry[j]
      end
    end
  end
  turn(r.view)
  turn(r.part and r.part.view or {})
end

-- Returns the first place in the queue whose waiter has not left.
local function first_place(r)
  while r.view[r.first] and r.left[r.view[r.first].id] do
    r.first = r.first + 1
  end
  return r.first
end

-- Returns the waiters from a score on that may overtake, in their order.
local function overtakers(r, from)
  local found = {}
  for id in pairs(r.count) do
    local members = #id == 32 and queued(id, record(r, id)) or {}
    for i = 1, #members, 2 do
      if members[i] >= from then
        found[#found + 1] = read_member(members[i + 1], members[i])
      end
    end
  end
  table.sort(found, function(a, b)
    return a.score < b.score
  end)
  return found
end
