-- How a request joins the queues of its resources.

-- Puts the session of a request into the queue of a resource. Its record is in place.
local function join(r, session, kin)
  local known = r.records[session]
  local claims, seq = known[CLAIMS], known[SEQ]
  if expires(known) then
    call('ZADD', r.e, r.now + known[HEARTBEAT], session)
    count(r, 'leases', 1)
  end
  local members = { seq, queued(session, known) }
  if not r.count.waiters then
    members[3], members[4] = '-inf', r.epoch
  end
  for j = 1, #claims do
    count_slots(r, claims[j], 1)
    count(r, claims[j][MODE], 1)
  end
  count(r, 'nested', #kin > 1 and #claims or 0)
  count(r, 'sessions', 1)
  count(r, 'waiters', 1)
  if known[NAMES] then
    count(r, 'linked', 1)
  end
  if seq > r.seq then
    r.seq = seq
  end
  put(r, session, known)
  local los, his = cuts(session, claims, false, r.epoch)
  change('ZADD', r.l, los)
  change('ZADD', r.u, his)
  change('ZADD', r.q, members)
  reread(r)
end

-- Whether a session waits for a resource that an ancestor of the request holds.
local function is_awaited(kin)
  for i = 1, n do
    for j = 2, resources[i].count.waiters and #kin or 0 do
      local above = record(resources[i], kin[j])
      if is_holder(above) then
        return true
      end
    end
  end
  return false
end

-- Whether a waiter heeds an entry of the queue that is ahead of it.
local function heeds(known, entry)
  for i = 1, entry.score < known[SEQ] and #known[CLAIMS] or 0 do
    local claim = known[CLAIMS][i]
    local modes = CLASH[claim[MODE]] .. (COLUMN[claim[MODE]] == 4 and 'sh' or '')
    for j = 1, #entry, 3 do
      if find(modes, entry[j], 1, true) and overlaps(entry[j + 1], entry[j + 2], claim[LO], claim[HI]) then
        return true
      end
    end
  end
  return false
end

-- Notes the waiters of a resource that may overtake another since the request has joined the queue:
-- the request itself, and those behind it. A waiter that is not noted overtakes nobody in this
-- queue. Returns whether one behind the request may overtake others.
local function note_overtakers(r, session, kin, looks_ahead)
  local own, is_overtaken = r.records[session], false
  local looks_behind = (r.count.nested or 0) > (#kin > 1 and #own[CLAIMS] or 0) and own[SEQ] < r.seq
  local member = read_member(queued(session, own), own[SEQ])
  local place = 1
  local entry = (looks_ahead or looks_behind) and waiter(r, place)
  while entry and (looks_behind or looks_ahead and entry.score < own[SEQ]) do
    local id = entry.id
    if not r.left[id] and id ~= session then
      if looks_ahead and heeds(own, entry) and awaited_above(r, id, kin) then
        count(r, session, 1)
        looks_ahead = false
      end
      local known = looks_behind and entry.is_nested and record(r, id)
      if known and heeds(known, member) and awaited_above(r, session, kin_of(id, known[ANCESTORS])) then
        count(r, id, r.count[id] and 0 or 1)
      end
      is_overtaken = is_overtaken or entry.score > own[SEQ] and r.count[id] ~= nil
    end
    place = place + 1
    entry = waiter(r, place)
  end
  return is_overtaken
end

-- Returns the waiters for several resources among the first HEADS_AHEAD behind a place. They may
-- heed the request that returns to the place. Together they have at most HEAD_NAMES names; a waiter
-- with more than FEW names is left out.
local function linked_behind(at, place)
  local found, looks, room = {}, 0, HEAD_NAMES
  for i = 1, #at do
    local view, k = view_from(at[i], place), 1
    local entry = looks < HEADS_AHEAD and waiter(view, k)
    while entry and looks < HEADS_AHEAD do
      local known = not at[i].left[entry.id] and record(at[i], entry.id)
      local names = known and known[NAMES] or {}
      if #names > 1 and #names <= math.min(FEW, room) then
        found[#found + 1], room = entry.id, room - #names
      end
      looks, k = looks + (known and 1 or 0), k + 1
      entry = waiter(view, k)
    end
  end
  return found
end

-- Whether a waiter of a resource may overtake others.
local function has_overtakers(r)
  for id in pairs(r.count) do
    if #id == 32 then
      return true
    end
  end
  return false
end

-- Adds the other resources of these waiters on which somebody may overtake, in the order of their
-- names.
local function add_queues_of(waiters, own, touched)
  local seen, others = {}, {}
  for i = 1, #own do
    seen[own[i]] = true
  end
  for i = 1, #waiters do
    local at = places(waiters[i])
    for j = 1, #at do
      others[#others + 1], seen[at[j]] = not seen[at[j]] and has_overtakers(at[j]) and at[j] or nil, true
    end
  end
  table.sort(others, function(a, b)
    return before(a.name, b.name)
  end)
  for i = 1, #others do
    touched[#touched + 1] = others[i]
  end
end
