-- The queue of a resource: q has a member for each waiting session, two where it has both nested
-- and ordinary claims. A member is the session and all that decides whether one of its claims is in
-- the way, so that walking the queue reads no records. Scores are the numbers of the requests;
-- those of nested claims lie below zero, ahead of all others, and that of the epoch is -inf.

local AHEAD = 4503599627370496

local function rank(known, claim)
  return known[SEQ] - (claim[NESTED] == 1 and AHEAD or 0)
end

-- The members of a session with their scores: score, member, score, member.
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

-- Takes a session out of the queue. Its record goes or changes later, so that no place is ever left
-- without one.
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

-- The waiter in a place of the queue as it was when it was first looked at, or nil behind the last.
-- Those that left since are in `left`. It is read in batches that grow, so that the first costs
-- little and all together few calls. Each begins with the last score of the one before: should two
-- have the same number, neither is left out.
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

-- Makes slots of the shares that a session waits for, in q and where it was read.
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

-- The first place in the queue whose waiter hasn't left.
local function first_place(r)
  while r.view[r.first] and r.left[r.view[r.first].id] do
    r.first = r.first + 1
  end
  return r.first
end
