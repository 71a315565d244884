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
  return repair(channel)
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

local refusal = refused(claims, where, kin)
if refusal then
  return finish(refusal)
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
local function count_busy(how)
  local first
  for i = 1, #at do
    local streak = note_busy(at[i], own, pack(lists[at[i]]), how, math.max(at[i].now - waited, 0))
    first = first or streak
  end
  return first
end

local newer
for i = 1, #at do
  newer = newer or superseded_by(at[i], own, place)
end
if newer then
  return finish({ 'superseded', count_busy('superseded'), newer })
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

local rivals = rivals_of(at, own, kin, supersedes and SUPERSEDED_MAX or 0)
-- Only a request without a place supersedes, so it has rivals or waiters behind it.
local behind = place > 0 and is_linked and linked_behind(at, place) or {}
need = (#rivals > 0 or #behind > 0) and needed(place > 0 and behind or rivals, #rivals > 0)
if need then
  return finish(need)
end
max_waiting = place_before == 0 and tonumber(max_waiting) or math.huge
for i = 1, #at do
  wait = wait and (at[i].count.waiters or 0) - rivals.leaving[i] < max_waiting
end

-- Other waiters are granted what these waiters and the dead ones free only when this request has
-- its grant or its place, because its place may be ahead of theirs.
local freed = {}

local again = wait and supersede(rivals, freed)
if again then
  return again
end
local passed = wait and kin or passed_over(kin, rivals)
local in_the_way, dead = pass_over_the_dead(claims, where, passed, place > 0 and place or nil, freed)
if dead then
  settle(freed)
  return finish(dead)
end

if in_the_way and not wait then
  settle(freed)
  reply = { 'busy', count_busy('busy') }
  for i = 1, #at do
    reply[i + 2] = listing(at[i], lists[at[i]], passed)
  end
  return finish(reply)
end

again = not wait and supersede(rivals, freed)
if again then
  return again
end
for i = 1, supersedes and #at or 0 do
  note_superseded(at[i], own)
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
local looks_ahead = #kin > 1 and is_awaited(kin)
for i = 1, #at do
  join(at[i], session, kin)
end
-- A waiter that overtakes others may also overtake one that has returned to its place, and the
-- waiters that wait for that one now.
local touched = {}
for i = 1, #at do
  if note_overtakers(at[i], session, kin, looks_ahead) then
    touched[#touched + 1] = at[i]
  end
end
add_queues_of(behind, at, touched)
for i = 1, #touched do
  freed[#freed + 1] = { touched[i], '\0', '\255', 'rpwsh' }
end
settle(freed)
return finish(stands(session))
