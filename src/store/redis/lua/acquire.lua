-- acquire: session | ttl | alone | terms | request
--
-- Grants or queues a request. A repeated call returns the state of the request. `alone` tells
-- whether the fast path may grant the request: 's' for a slot, '1' for another claim, and 'm' for
-- one claim on each of several resources. It is '0' if only the general path may grant the request:
-- because of its ancestors or its job, because a resource has several claims, or because the
-- request has waited before. `terms` are six texts with spaces between them: whether the request
-- waits, its place, how long it has waited before it lost its place, whether its session listens,
-- whether it supersedes the waiters of its job, and max_waiting. A request that has no place yet
-- does not wait if `max_waiting` sessions wait for one of its resources; it may be empty. `request`
-- has the packed claims, and then the part of the records that never changes, packed.

local session, ttl, alone, request = ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[7]

--- the fast path ---

-- Most requests are one claim on a resource that no session uses. A resource that is not known
-- takes the other path, which tries all rights before the first write.
if n == 1 and (alone == '1' or alone == 's') then
  local s = KEYS[1]
  local raw = call('GET', s)
  if raw and string.sub(raw, 1, FIELDS - 1) == NOBODY then
    local clock, token, seq = struct.unpack(STATE_OF_NOBODY, raw, FIELDS)
    local past = string.sub(raw, PAST_OF_NOBODY)
    local last, jobs = last_outcome(past)
    -- A resource that is not quiet has an e, whatever s says. A grant ends a streak of its job.
    if jobs == '' and call('EXISTS', KEYS[3]) == 0 then
      read_clock(clock)
      token = next_token(token)
      local lease, more = ttl, ''
      hold_alone(s, token, seq, past, lease, more, request)
      if alone == 's' then
        return { 'granted', ttl, token, { 0 }, last }
      end
      return { 'granted', ttl, token, last }
    end
  end
end

--- both paths ---

-- Makes the session the sole holder of a resource that no session uses. `lease` is how long the
-- hold lasts. `more` is empty for a plain hold of one resource. Else it is packed: for a kept hold
-- how the hold before it ended, or nil; for the sole holder of several resources the names that a
-- record would have, and how the last hold of the first resource had ended.
local function hold_alone(s, token, seq, past, lease, more, request)
  local expiry = lease > 0 and (lease < EVER and now + lease or NEVER) or 0
  local state = struct.pack(STATE_OF_SOLE, now, expiry, token, seq, #past, past, now, ttl, session, #more, more)
  call('SET', s, SOLE .. state .. request)
end

-- Maximum number of resources for which each record has all names, so that one more call suffices
-- to declare all. With more resources, only the record at the first resource has all names, and the
-- other records name the first resource. So the records of a request take memory in proportion to
-- its names.
local FEW = 16

-- Makes the session the sole holder of several resources that no session uses. Each has one claim.
local grant_all_alone = n > 1 and function(at, names, claims, fixed, lease, is_kept)
  local last = last_outcome(at[1].past)
  local reply, slots = { 'granted', lease }, {}
  for i = 1, #at do
    local r, claim, its_names = at[i], claims[i], (i == 1 or #names <= FEW) and names or { names[1] }
    claim[INDEX], now = i - 1, r.now
    local more = pack(is_kept and last or nil, its_names, last)
    reply[i + 2] = next_token(r.token)
    hold_alone(r.s, reply[i + 2], r.seq, r.past, lease, more, pack({ { unpack(claim, INDEX, TEXT) } }) .. fixed)
    slots[#slots + 1] = claim[MODE] == 's' and 0 or nil
  end
  reply[#reply + 1] = #slots > 0 and slots or nil
  reply[#reply + 1] = last
  return reply
end

--- the fast path for several resources ---

if alone == 'm' then
  local at, names = {}, {}
  for i = 1, n do
    local s = KEYS[7 * i - 6]
    local raw = #at == i - 1 and call('GET', s)
    names[i] = ARGV[#ARGV - n + i]
    if raw and string.sub(raw, 1, FIELDS - 1) == NOBODY then
      local clock, token, seq = struct.unpack(STATE_OF_NOBODY, raw, FIELDS)
      local past = string.sub(raw, PAST_OF_NOBODY)
      local _, jobs = last_outcome(past)
      if jobs == '' and call('EXISTS', KEYS[7 * i - 4]) == 0 then
        read_clock(clock)
        at[i] = { s = s, token = token, seq = seq, past = past, now = now }
      end
    end
  end
  if #at == n then
    local after, claims = cmsgpack.unpack_one(request)
    if #claims == n then
      return grant_all_alone(at, names, claims, string.sub(request, after + 1), ttl)
    end
  end
end

--- the general path ---

local wait, place, waited, listening, supersedes, max_waiting = string.match(ARGV[6], '^(%d) (%d+) (%d+) (%d) (%d) (%d*)$')
wait, place, waited, listening = wait == '1', tonumber(place), tonumber(waited), tonumber(listening)
supersedes = supersedes == '1' and place == 0
local asked, fixed = split_record(request)

-- The record that the request gets.
local own = with_fixed({}, fixed)
local channel, ancestors = own[CHANNEL], own[ANCESTORS]

resources.adds = true
begin(session)
look_for_expired()
if damaged then
  return mend(channel)
end
local _, lost = places(session)
local need = needed({}, lost)
if need then
  return need
end
check(channel)
if holds_alone(session) then
  return stands(session)
end
spread_all()
local more = catch_up()
if more then
  return finish(more)
end
drop_lost(session)
local reply = stands(session)
if reply[1] ~= 'unknown' then
  return finish(reply)
end

-- The claims, by resource in the order of first mention.
local claims, where, at, lists = {}, {}, {}, {}
local names = {}
for i = 1, #asked do
  local r = resources[asked[i][1]]
  local claim = asked[i]
  claim[INDEX], claim[TOKEN] = i - 1, 0
  if not lists[r] then
    lists[r] = {}
    at[#at + 1], names[#names + 1] = r, r.name
  end
  lists[r][#lists[r] + 1] = claim
  claims[#claims + 1], where[#claims + 1] = claim, r
end

local kin = kin_of(session, ancestors)

local earlier = {}
for i = 1, #claims do
  local r, claim = where[i], claims[i]
  local how, what, shares = standing(r, claim, kin, earlier[r] or 0)
  earlier[r] = (earlier[r] or 0) + (COLUMN[claim[MODE]] == 4 and 1 or 0)
  if how == 'refused' then
    return finish(what)
  end
  if shares then
    claim[MODE] = 'h'
  end
end

local by = done_by(at[1], own)
if by then
  note_spared(at[1], own, pack(lists[at[1]]), by)
  return finish({ 'already' })
end
if is_without_place(at[1], own) then
  return finish({ 'refused', 'jobs', at[1].name })
end

-- Counts the request as busy on each of its resources. Returns the streak of its job on the first.
local function count_busy()
  local first
  for i = 1, #at do
    local streak = note_busy(at[i], own, pack(lists[at[i]]))
    first = first or streak
  end
  return first
end

local newer
for i = 1, #at do
  newer = newer or superseded_by(at[i], own, place)
end
if newer then
  return finish({ 'superseded', count_busy(), newer })
end

local place_before = place

-- A waiter that comes back keeps its place, unless the numbers have begun anew and another waiter
-- has this number.
for i = 1, place > 0 and #at or 0 do
  if call('ZRANGE', at[i].q, place, place, 'BYSCORE', 'LIMIT', 0, 1)[1] then
    place = 0
  end
end

-- What the ancestors hold decides which of the waiters for several resources a nested request
-- overtakes.
local is_linked = false
for i = 1, #at do
  is_linked = is_linked or at[i].count.linked
end
if #kin > 1 and is_linked and not are_declared(own[HELD_ABOVE]) then
  return finish({ 'need', unpack(own[HELD_ABOVE]) })
end

-- The waiters that the request supersedes, and how many of them wait for each resource. Looks at
-- the first SUPERSEDED_MAX waiting claims of the resources. If more leave than one call takes away,
-- the client repeats the call.
local superseded, where_of, leaving, more_leave = {}, {}, {}, false
local unseen, room = supersedes and SUPERSEDED_MAX or 0, LOAD
for i = 1, #at do
  local r, k = at[i], 1
  local entry = unseen > 0 and r.count.waiters and waiter(r, k)
  leaving[i] = 0
  while entry and unseen > 0 do
    local id = entry.id
    local known = not r.left[id] and not kin[id] and record(r, id)
    if known and known[JOB] == own[JOB] then
      leaving[i] = leaving[i] + 1
      local cost = not where_of[id] and load_of(id, r)
      if cost and (#superseded == CROWD or #superseded > 0 and cost > room) then
        more_leave = true
      elseif cost then
        superseded[#superseded + 1], where_of[id], room = id, r, room - cost
      end
    end
    unseen, k = unseen - #entry / 3, k + 1
    entry = waiter(r, k)
  end
end
need = #superseded > 0 and needed(superseded, true)
if need then
  return finish(need)
end
max_waiting = place_before == 0 and tonumber(max_waiting) or math.huge
for i = 1, #at do
  wait = wait and (at[i].count.waiters or 0) - leaving[i] < max_waiting
end

-- Other waiters are granted what these waiters and the dead ones free only when this request has
-- its grant or its place, because its place may be ahead of theirs.
local freed = {}

-- Ends the superseded waiters, which find out when they ask again. Returns the reply if the call
-- has to be repeated.
local function supersede()
  for i = 1, #superseded do
    local id = superseded[i]
    local known = record(where_of[id], id)
    if known[LISTENING] == 1 and publish ~= '' then
      is_heard(known[CHANNEL])
    end
    leave({ id }, where_of[id], freed)
  end
  if more_leave then
    settle(freed)
    return finish({ 'need' })
  end
end

local again = wait and supersede()
if again then
  return again
end
local in_the_way, dead = pass_over_the_dead(claims, where, kin, place > 0 and place or nil, freed)
if dead then
  settle(freed)
  return finish(dead)
end

-- Lists some of the sessions that conflict on a resource: holders first, then waiters, and the
-- number of all waiters. A held claim may surround the span and have no end inside it. Of these
-- claims, the listing looks at the nearest on either side and at the first of all. If few claims
-- are held, these are all of them. All listings of the call share `looks_left`, in claims that the
-- listing reads. A search of a set costs as much as READ_SET claims, and so does a session; a claim
-- that was read and a pair of claims that the listing compares cost less.
local READ_SET, PAIR = 2, 0.1
local looks_left = LOAD
local function listing(r)
  local reply, seen = { r.name, r.count.waiters or 0 }, {}
  -- The listing is complete when it has all holders, however many claims the request has.
  local left = math.min(16, (r.count.sessions or 0) - (r.count.waiters or 0))
  local function tell(id, expiry, place_of)
    if not seen[id] and not kin[id] then
      looks_left = looks_left - READ_SET - 0.5 * #r.records[id][CLAIMS]
      seen[id] = true
      reply[#reply + 1] = told(id, { r }, expiry, place_of)
      left = left - 1
    end
  end
  local function in_way_of(claim, mode, lo, hi)
    local clash = CLASH[claim[MODE]] .. (COLUMN[claim[MODE]] == 4 and 's' or '')
    return find(clash, mode, 1, true) and overlaps(lo, hi, claim[LO], claim[HI])
  end
  local function look(claim, members)
    for i = 1, #members do
      local id = owner(members[i])
      if left <= 0 or looks_left <= 0 then
        return
      end
      local is_new = r.records[id] == nil
      local known = not seen[id] and record(r, id)
      looks_left = looks_left - (is_new and known and 0.5 * #known[CLAIMS] or 0)
      for j = 1, known and #known[CLAIMS] or 0 do
        local its = known[CLAIMS][j]
        looks_left = looks_left - PAIR
        if known[HELD] > WAITS and in_way_of(claim, its[MODE], its[LO], its[HI]) then
          tell(id, expiry_of(r, id))
          break
        end
      end
    end
  end
  for i = 1, #lists[r] do
    local claim = lists[r][i]
    local lo, hi, modes = claim[LO], claim[HI], CLASH[claim[MODE]] .. (claim[MODE] == 's' and 's' or '')
    for j = 1, left > 0 and #modes or 0 do
      local class = capital(sub(modes, j, j))
      local from, past = '[' .. class, '(' .. char(byte(class) + 1)
      if r.count[class] and looks_left > 0 then
        looks_left = looks_left - 4 * READ_SET
        look(claim, call('ZRANGE', r.l, from .. lo, '(' .. class .. hi, 'BYLEX', 'LIMIT', 0, 16 + #kin))
        look(claim, call('ZRANGE', r.u, '(' .. class .. lo .. '\255', past, 'BYLEX', 'LIMIT', 0, 64))
        look(claim, call('ZRANGE', r.l, '(' .. class .. lo, from, 'BYLEX', 'REV', 'LIMIT', 0, 64))
        look(claim, call('ZRANGE', r.l, from, past, 'BYLEX', 'LIMIT', 0, 64))
      end
    end
  end
  local waiting, walked = {}, 0
  left = 16
  local function blocks(entry)
    for i = 1, #lists[r] do
      if looks_left <= 0 then
        return false
      end
      looks_left = looks_left - PAIR * #entry / 3
      for j = 1, #entry, 3 do
        if in_way_of(lists[r][i], entry[j], entry[j + 1], entry[j + 2]) then
          return true
        end
      end
    end
  end
  local places_ = number_waiters(r, function(entry)
    waiting[#waiting + 1] = blocks(entry) and entry.id or nil
    walked = walked + 1
    return walked < 64 and looks_left > 0
  end)
  for i = 1, #waiting do
    if left > 0 and looks_left > 0 and record(r, waiting[i]) then
      tell(waiting[i], 0, places_)
    end
  end
  for i = 2, #kin do
    local known = r.count.waiters and record(r, kin[i])
    if known and known[HELD] == WAITS then
      reply[2] = reply[2] - 1
    end
  end
  return reply
end

if in_the_way and not wait then
  settle(freed)
  reply = { 'busy', count_busy() }
  for i = 1, #at do
    reply[i + 2] = listing(at[i])
  end
  return finish(reply)
end

again = not wait and supersede()
if again then
  return again
end
for i = 1, supersedes and #at or 0 do
  note_superseded(at[i], own)
end

-- Whether a session waits for a resource that an ancestor of the request holds.
local function is_awaited()
  for i = 1, n do
    for j = 2, resources[i].count.waiters and #kin or 0 do
      local above = record(resources[i], kin[j])
      if above and above[HELD] > WAITS then
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
    local modes = CLASH[claim[MODE]] .. (claim[MODE] == 's' and 'sh' or '')
    for j = 1, #entry, 3 do
      if find(modes, entry[j], 1, true) and overlaps(entry[j + 1], entry[j + 2], claim[LO], claim[HI]) then
        return true
      end
    end
  end
  return false
end

-- Notes the waiters of a resource that may overtake another since the request has joined the queue:
-- the request itself, and those behind it. The claims of waiters stay as they are, and the holds of
-- their ancestors only become less, so the answer stays the same. Returns whether one behind it may
-- overtake others.
local function note_overtakers(r, looks_ahead)
  local own, is_overtaken = r.records[session], false
  local looks_behind = (r.count.nested or 0) > (#kin > 1 and #lists[r] or 0) and own[SEQ] < r.seq
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

local seq = place
for i = 1, #at do
  if in_the_way and place == 0 and at[i].seq >= seq then
    seq = at[i].seq + 1
  end
end
local kept = own[KEEP_FOR]
local lease = kept > 0 and (kept < EVER and math.min(kept, KEPT_MAX) or EVER) or ttl
local left = lease < EVER and lease or NEVER - latest
-- Whether the session becomes the sole holder of each of its resources. The general path leaves a
-- resource in the state in which the fast path would leave it, which has no instant of a request.
local is_sole = ancestors == '' and not in_the_way and waited == 0
for i = 1, #at do
  is_sole = is_sole and #lists[at[i]] == 1 and not next(at[i].count)
end
if is_sole then
  for i = 1, #at do
    local r = at[i]
    close(r)
    end_streak(r, own)
    r.past, r.holder = packed_past(past_of(r)), session
  end
  if #at > 1 then
    reply = grant_all_alone(at, names, claims, fixed, lease, kept > 0)
    reply[2] = left
  else
    local r, last = at[1], past_of(at[1])[OUTCOME]
    now = r.now
    local token = next_token(r.token)
    hold_alone(r.s, token, r.seq, r.past, lease, kept > 0 and pack(last) or '', request)
    reply = granted(left, { { [TOKEN] = token, [SLOT] = claims[1][MODE] == 's' and 0 or nil } }, last)
  end
  settle(freed)
  return finish(reply)
end
for i = 1, #at do
  local r = at[i]
  now = r.now
  if not r.epoch then
    open(r, now)
  end
  local named = #names > 1 and (i == 1 or #names <= FEW) and names or #names > 1 and { names[1] }
  r.records[session] = with_fixed({ WAITS, now, in_the_way and seq or 0, listening, math.max(now - waited, 0), named, ttl, '', lists[r] }, fixed)
end
if not in_the_way then
  grant(session, at, kin, false)
  settle(freed)
  return finish(granted(left, claims, at[1].records[session][LAST]))
end
local looks_ahead = #kin > 1 and is_awaited()
for i = 1, #at do
  local r = at[i]
  local known = r.records[session]
  if ttl > 0 then
    call('ZADD', r.e, r.now + known[HEARTBEAT], session)
    count(r, 'leases', 1)
  end
  local members = { seq, queued(session, known) }
  if not r.count.waiters then
    members[3], members[4] = '-inf', r.epoch
  end
  for j = 1, #lists[r] do
    count_slots(r, lists[r][j], 1)
    count(r, lists[r][j][MODE], 1)
  end
  count(r, 'nested', #kin > 1 and #lists[r] or 0)
  count(r, 'sessions', 1)
  count(r, 'waiters', 1)
  if known[NAMES] then
    count(r, 'linked', 1)
  end
  if seq > r.seq then
    r.seq = seq
  end
  put(r, session, known)
  local los, his = cuts(session, lists[r], false, r.epoch)
  change('ZADD', r.l, los)
  change('ZADD', r.u, his)
  change('ZADD', r.q, members)
  reread(r)
end
-- Those who overtake others may also overtake a waiter that has returned to its place, and those in
-- between, which wait for it now.
for i = 1, #at do
  if note_overtakers(at[i], looks_ahead) then
    freed[#freed + 1] = { at[i], '\0', '\255', 'rpwsh' }
  end
end
settle(freed)
return finish(stands(session))
