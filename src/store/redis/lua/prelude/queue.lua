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
      found[k - 1], found[k], place[score] = score, id, k
    end
    found[k] = found[k] .. claim[MODE] .. format('%04x%04x', #lo, #hi) .. lo .. hi
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
    end
  end
  count(r, 'waiters', -1)
  if r.count[id] then
    count(r, id, -1)
  end
  if not r.count.waiters then
    call('ZREM', r.q, r.epoch)
  end
  link(r, known[NAMES], -1)
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
-- in growing batches, so that the first batch costs little and few calls read the whole queue. Each
-- batch begins with the last score of the batch before. So if two waiters have the same number,
-- neither is left out.
local function waiter(r, at)
  while not r.view[at] and not r.all do
    local page = call('ZRANGE', r.q, r.after or '(-inf', '+inf', 'BYSCORE', 'LIMIT', 0, r.batch, 'WITHSCORES')
    r.all = #page < 2 * r.batch
    r.batch = 2 * r.batch
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

-- Turns the shares that a session waits for into slots, in q and in the part of the queue already
-- read.
local function requeue(r, id, old, new)
  for i = 1, #old, 2 do
    if old[i + 1] ~= new[i + 1] then
      call('ZADD', r.q, new[i], new[i + 1])
      call('ZREM', r.q, old[i + 1])
    end
  end
  for i = 1, #r.view do
    local entry = r.view[i]
    for j = 1, entry.id == id and #entry or 0, 3 do
      entry[j] = entry[j] == 'h' and 's' or entry[j]
    end
  end
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
