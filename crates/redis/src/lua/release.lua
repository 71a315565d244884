-- release: session | outcome | success | history | is_plain
--
-- Gives back a grant, or a place in the queue, and returns the tokens. The tokens of a waiter are
-- 0. `outcome` tells how the command ended; it is empty if none ran. `success` is 1 if it
-- succeeded, and `history` is the number of entries that the history keeps. `is_plain` is 1 if
-- neither a kept hold nor the success of a job nor a lost hold may follow from the release: its
-- request asks neither for a shortest time of its hold nor for one run in a period, no run of a
-- named job has succeeded, and the outcome is not 'lost'.

local session, outcome, success, limit, is_plain = ARGV[3], ARGV[4], ARGV[5] == '1', tonumber(ARGV[6]), ARGV[7] == '1'

--- the fast path ---

-- Most releases come from the sole holder of one resource.
local raw = is_plain and n == 1 and call('GET', KEYS[1])
local kind = raw and string.sub(raw, 1, FIELDS - 1)
if kind == SOLE then
  local clock, expiry, token, seq, past, since, _, holder, more, rest = struct.unpack(STATE_OF_SOLE, raw, FIELDS)
  if holder == session and more == '' then
    read_clock(clock)
    past = read_past(past)
    if (expiry == 0 or now < expiry) and keeps_entries(past) then
      local s, h, request = KEYS[1], KEYS[7], string.sub(raw, rest)
      release_alone(s, h, token, seq, past, since, request)
      return { 'released', token }
    end
  end
end

--- both paths ---

-- Whether no entries of the history have to go. The fast path has the expression in the place of a
-- call, so it needs its parentheses.
local function keeps_entries(past)
  return (outcome == '' or limit > 0 or past[ENTERED] == past[FIRST])
end

-- Gives back the grant of a sole holder.
local function release_alone(s, h, token, seq, past, since, request)
  local asked, times, ended, is_remembered = since, 1, past[ENDED], outcome ~= '' and limit > 0
  local bound = past[BOUND]
  count_end(past, since)
  if outcome ~= '' then
    note_outcome(past, outcome, success)
    past[ENTERED] = is_remembered and past[ENTERED] + 1 or past[ENTERED]
  end
  leave_alone(s, token, seq, past)
  if is_remembered and not is_full then
    local entry = entry_of(outcome, times, asked, since, token, request)
    remember(h, limit, ended, entry, bound)
  end
end

-- Gives back the grants of the sole holder of several resources. If a hold is kept, or entries of a
-- history have to go, it does nothing and returns nil.
local release_all_alone = n > 1 and function(at)
  for i = 1, #at do
    local r = at[i]
    r.parsed_past = r.parsed_past or read_past(r.past)
    if r.kept or not keeps_entries(r.parsed_past) then
      return nil
    end
  end
  local reply = { 'released' }
  for i = 1, #at do
    local r = at[i]
    now = r.now
    release_alone(r.s, r.h, r.token, r.seq, r.parsed_past, r.since, r.request)
    reply[2 + r.index] = r.token
  end
  return reply
end

--- the fast path for several resources ---

-- A session with several resources is mostly the sole holder of each.
local all = is_plain and n > 1 and states_of_all(session)
local released = all and release_all_alone(all)
if released then
  return released
end

--- the hand-over ---

-- Most releases beside waiters hand a resource from its only holder to the first waiter. This path
-- grants a write claim on the whole resource, or on just the part that is freed: nobody else can be
-- granted then. The path has written nothing if it does not apply. It asks of
--
-- the release       is_plain; a command has ended (outcome), and the history keeps its end (limit)
-- the state         nothing put off (walks), no success or skip of a job (JOBS), no lease that is
--                   over (#over == 1: the epoch alone)
-- the sessions      one holder beside the waiters (sessions), none with ancestors (nested), and a
--                   write among the waiters (w)
-- the keys          each has the epoch, and d has a record for each session (agrees)
-- the caller        holds, and not as a kept hold; one claim, no slot, no other resource, and nobody
--                   has revoked its grant (MORE)
-- the first waiter  waits, with a lease; one claim, a write on the whole resource or on exactly
--                   the span that is freed, and no other resource; it hears its channel, if it said
--                   that it listens
local clock, token, seq, past, slots, epoch, counters, walks, more, rest
if kind == SEVERAL then
  clock, token, seq, past, rest = struct.unpack(STATE_OF_SEVERAL, raw, FIELDS)
  slots, epoch, counters, walks, more = unpacked(sub(raw, rest))
end
if counters and not walks and counters.w and not counters.nested and counters.sessions == counters.waiters + 1
  and outcome ~= '' and limit > 0 then
  read_clock(clock)
  local r = {
    s = KEYS[1], d = KEYS[2], e = KEYS[3], q = KEYS[4], l = KEYS[5], u = KEYS[6],
    token = next_token(token), seq = seq, parsed_past = read_past(past), slots = slots, epoch = epoch,
    count = counters, more = more, now = now,
  }
  -- The epoch comes before all expiries and all places.
  local over, first = call('ZRANGE', r.e, '-inf', now, 'BYSCORE', 'LIMIT', 0, 2), call('ZRANGE', r.q, 0, 1)
  local id = sub(first[2] or '', 1, 32)
  local fields = call('HMGET', r.d, '#epoch', session, id)
  local agrees = fields[1] == epoch and over[1] == epoch and first[1] == epoch and call('EXISTS', r.l, r.u) == 2
    and call('HLEN', r.d) == 1 + counters.sessions
  local own, own_fixed = split_record(fields[2])
  local its = read_record(fields[3])
  local freed, taken = own and own[CLAIMS][1], its and its[CLAIMS][1]
  if agrees and #over == 1 and r.parsed_past[JOBS] == ''
    and own and own[HELD] == HOLDS and not own[NAMES] and not own[MORE] and #own[CLAIMS] == 1 and find('rpw', freed[MODE], 1, true)
    and its and its[HELD] == WAITS and not its[NAMES] and its[TTL] > 0 and its[ANCESTORS] == ''
    and #its[CLAIMS] == 1 and taken[MODE] == 'w'
    and (taken[TEXT] == '' or taken[LO] == freed[LO] and taken[HI] == freed[HI])
    and (its[LISTENING] ~= 1 or publish == '' or is_heard(its[CHANNEL])) then
    local ended = r.parsed_past[ENDED]
    local entry = entry_of(outcome, 1, own[ASKED], own[SINCE], freed[TOKEN], pack(own[CLAIMS]) .. own_fixed)
    local old_los, old_his = cuts(session, own[CLAIMS], true)
    local waiting_los, waiting_his = cuts(id, its[CLAIMS], false)
    local los, his = cuts(id, its[CLAIMS], true, epoch)
    taken[TOKEN], its[SINCE], its[LAST] = r.token, now, outcome
    -- The first write takes no memory, so the server accepts the next at maxmemory.
    call('ZREM', r.e, session)
    call('ZADD', r.e, hold(its, true), id)
    put(r, id, its)
    call('HDEL', r.d, session)
    change('ZADD', r.l, los)
    change('ZADD', r.u, his)
    call('ZREM', r.l, old_los[1], waiting_los[1])
    call('ZREM', r.u, old_his[1], waiting_his[1])
    call('ZREM', r.q, first[2], counters.waiters == 1 and epoch or first[2])
    count(r, capital(freed[MODE]), -1)
    count(r, 'leases', own[TTL] > 0 and -1 or 0)
    count(r, 'sessions', -1)
    count(r, 'w', -1)
    count(r, 'W', 1)
    count(r, 'waiters', -1)
    count_end(r.parsed_past, own[SINCE])
    add_to(r.parsed_past, WAITED, own[SINCE] - own[ASKED])
    note_outcome(r.parsed_past, outcome, success)
    r.parsed_past[ENTERED] = r.parsed_past[ENTERED] + 1
    put_state(r)
    remember(KEYS[7], limit, ended, entry, r.parsed_past[BOUND])
    return { 'released', freed[TOKEN] }
  end
end

--- the general path ---

begin(session)
look_for_expired()
if damaged then
  return repair()
end
local sole = resources[1]
if is_plain and n == 1 and holds_alone(session) and not sole.names and not sole.kept and keeps_entries(past_of(sole)) then
  release_alone(sole.s, sole.h, sole.token, sole.seq, past_of(sole), sole.since, sole.request)
  return { 'released', sole.token }
end
local at, lost = places(session)
local known = #at > 0
local need = needed({ session }, known)
if need then
  return need
end
local released = is_plain and n > 1 and #at == n and not lost and holds_alone(session) and release_all_alone(at)
if released then
  return released
end
local more = catch_up_beside(known)
if more then
  return finish(more)
end
at = places(session)
if #at == 0 then
  return finish({ 'unknown' })
end
local claims = claims_of(session, at)
local own = at[1].records[session]
outcome = outcome == 'kept' and revocation(own) and 'broken' or outcome
local run = outcome ~= '' and { outcome = outcome, success = success, limit = limit }

-- The end of a run leaves a kept hold if the hold has to stay and nobody has revoked it. A release
-- that tells how the run ended does not end that kept hold, because it may be a repetition.
local least = math.min(own[HOLD_AT_LEAST], KEPT_MAX)
local stays_until = own[SINCE] + least
if run and own[KEEP_FOR] == 0 and own[HELD] > WAITS and stays_until > at[1].now and not revocation(own) then
  for i = 1, own[HELD] ~= KEPT and #at or 0 do
    local r = at[i]
    local its = r.records[session]
    now = r.now
    count(r, 'leases', expires(its) and 0 or 1)
    its[HELD] = KEPT
    call('ZADD', r.e, its[SINCE] + least, session)
    note_run(r, its, outcome, success, limit)
    put(r, session, its)
  end
  return finish({ 'kept', stays_until })
end
local reply, freed = { 'released' }, {}
for i = 1, #claims do
  reply[i + 1] = claims[i][TOKEN]
end
for i = 1, own[HELD] == WAITS and #at or 0 do
  local its = at[i].records[session]
  now = at[i].now
  enter_wait(at[i], its, pack(its[CLAIMS]), 'left', its[ASKED])
end
leave({ session }, nil, freed, 'released', run)
settle(freed)
return finish(reply)
