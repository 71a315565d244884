-- release: session | outcome | success | history | hold_at_least | once
--
-- Gives back a grant, or a place in the queue, and returns the tokens. The tokens of a waiter are
-- 0. `outcome` tells how the command ended; it is empty if none ran. `success` is 1 if it
-- succeeded, and `history` is the number of entries that the history keeps. If the hold has to last
-- for longer, the end of its command leaves a kept hold. `once` is 1 for a request that asks for
-- one run in a period.

local session, outcome, success, limit = argument(1), argument(2), argument(3) == '1', tonumber(argument(4))

-- Whether neither a kept hold nor the success of a job may follow from the release.
local is_plain = n == 1 and argument(5) == '0' and argument(6) == '0'

-- Whether no entries of the history have to go.
local function keeps_entries(past)
  return outcome == '' or limit > 0 or past[ENTERED] == past[FIRST]
end

-- Gives back the grant of a sole holder.
local function release_alone(s, h, token, seq, past, since, fixed, claims)
  local ended, is_remembered = past[ENDED], outcome ~= '' and limit > 0
  count_end(past, since, since)
  if outcome ~= '' then
    note_outcome(past, outcome, success)
    past[ENTERED] = is_remembered and past[ENTERED] + 1 or past[ENTERED]
  end
  if leave_alone(s, token, seq, past) and is_remembered then
    remember(h, limit, ended, entry_of(outcome, 1, since, since, token, claims, fixed))
  end
  return { 'released', token }
end

--- the fast path ---

-- Most releases come from the sole holder of one resource.
if is_plain then
  local raw = call('GET', KEYS[1])
  if raw then
    check_format(raw)
    local _, clock, token, seq, past, holder, since, _, expiry, fixed, claims, kept = unpacked(raw)
    if holder == session and not kept then
      read_clock(clock)
      past = read_past(past)
      if (expiry == 0 or now < expiry) and keeps_entries(past) then
        return release_alone(KEYS[1], KEYS[7], token, seq, past, since, fixed, claims)
      end
    end
  end
end

--- the general path ---

begin(session)
look_for_expired()
if damaged then
  return mend()
end
local sole = resources[1]
if is_plain and sole.holder == session and not sole.kept and #due == 0 and keeps_entries(past_of(sole)) then
  return release_alone(sole.s, sole.h, sole.token, sole.seq, past_of(sole), sole.since, sole.fixed, sole.claims)
end
local known = #places(session) > 0
local need = needed({ session }, known)
if need then
  return need
end
local more = catch_up_beside(known)
if more then
  return finish(more)
end
local at = places(session)
if #at == 0 then
  return finish({ 'unknown' })
end
local claims = claims_of(session, at)
local own = at[1].records[session]
local run = outcome ~= '' and { outcome = outcome, success = success, limit = limit }

-- The end of a run leaves a kept hold if the hold has to stay. A release that tells how the run
-- ended does not end that kept hold, because it may be a repetition.
local stays_until = own[SINCE] + math.min(own[HOLD_AT_LEAST], KEPT_MAX)
if run and own[KEEP_FOR] == 0 and own[HELD] > WAITS and stays_until > now then
  for i = 1, own[HELD] ~= KEPT and #at or 0 do
    local r = at[i]
    local its = r.records[session]
    count(r, 'leases', expires(its) and 0 or 1)
    its[HELD] = KEPT
    call('ZADD', r.e, stays_until, session)
    note_run(r, its, outcome, success, limit)
    put(r, session, its)
  end
  return finish({ 'kept', stays_until })
end
local reply, freed = { 'released' }, {}
for i = 1, #claims do
  reply[i + 1] = claims[i][TOKEN]
end
leave({ session }, nil, freed, 'released', run)
settle(freed)
return finish(reply)
