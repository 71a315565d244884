-- The queue of a resource: q has a member for each waiting session. It contains the session,
-- whether the session has ancestors, and everything that decides whether one of its claims
-- conflicts, so a walk through the queue reads no records. The scores are the numbers of the
-- requests. The epoch has the score -inf.

-- Returns the member of a session.
local function queued(id, known)
  local found = { id, known[ANCESTORS] == '' and '0' or '1' }
  for i = 1, #known[CLAIMS] do
    local claim = known[CLAIMS][i]
    local lo, hi = claim[LO], claim[HI]
    found[#found + 1] = claim[MODE] .. format('%04x%04x', #lo, #hi) .. lo .. hi
  end
  return table.concat(found)
end

-- Removes a session from the queue. The record is removed or changed later, so that every place
-- always has a record.
local function unqueue(r, id, known)
  call('ZREM', r.q, queued(id, known))
  for i = 1, #known[CLAIMS] do
    count(r, known[CLAIMS][i][MODE], -1)
  end
  count(r, 'nested', known[ANCESTORS] == '' and 0 or -#known[CLAIMS])
  count(r, 'waiters', -1)
  if r.count[id] then
    count(r, id, -1)
  end
  if not r.count.waiters and resources.adds then
    r.is_drained = true
  elseif not r.count.waiters then
    call('ZREM', r.q, r.epoch)
  end
  if known[NAMES] then
    count(r, 'linked', -1)
  end
  r.left[id] = true
end

local function read_member(member, score)
  local entry = { id = sub(member, 1, 32), is_nested = sub(member, 33, 33) == '1', score = score }
  local at_mode = 34
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
      if not r.seen[entry.id] then
        r.view[#r.view + 1], r.seen[entry.id], r.after = entry, true, page[i + 1]
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
    entries[#entries + 1] = read_member(queued(id, its), its[SEQ])
  end
  work = work - READ * #entries
  table.sort(entries, function(a, b)
    return a.score < b.score or a.score == b.score and before(a.id, b.id)
  end)
  return { view = entries, all = true }
end

-- Turns the shares that a session waits for into slots, in q and in the parts of the queue already
-- read. `old` is its member so far.
local function requeue(r, id, old, known)
  local new = queued(id, known)
  if old ~= new then
    call('ZADD', r.q, known[SEQ], new)
    call('ZREM', r.q, old)
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
    local known = #id == 32 and record(r, id)
    if known and known[SEQ] >= from then
      found[#found + 1] = read_member(queued(id, known), known[SEQ])
    end
  end
  table.sort(found, function(a, b)
    return a.score < b.score
  end)
  return found
end
