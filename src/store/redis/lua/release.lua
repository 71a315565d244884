-- release: session | outcome | success | history
--
-- Gives back a grant, or a place in the queue, and returns the tokens. The tokens of a waiter are
-- 0. `outcome` tells how the command ended; an empty outcome leaves no trace. `success` is 1 if it
-- succeeded, and `history` is the number of entries that the history keeps.

local session, outcome, limit = argument(1), argument(2), tonumber(argument(4))

-- Gives back the grant of a sole holder.
local function release_alone(s, h, token, seq, past, since, fixed, claims)
  local ended
  if outcome ~= '' then
    past, ended = past_with(past, outcome, argument(3) == '1', since, since)
  end
  local is_kept = ended and limit > 0
  local has_memory = leave_alone(s, token, seq, past, is_kept)
  if is_kept and has_memory then
    remember(h, limit, ended, outcome, since, since, token, claims, fixed)
  end
  return { 'released', token }
end

--- the fast path ---

-- Most releases come from the sole holder of one resource.
if n == 1 then
  local raw = call('GET', KEYS[1])
  if raw then
    check_format(raw)
    local _, clock, token, seq, past, holder, since, _, expiry, fixed, claims = unpacked(raw)
    if holder == session then
      read_clock(clock)
      if expiry == 0 or now < expiry then
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
if n == 1 and sole.holder == session and #due == 0 then
  return release_alone(sole.s, sole.h, sole.token, sole.seq, sole.past, sole.since, sole.fixed, sole.claims)
end
local known = #places(session) > 0
local need = needed({ session }, known)
if need then
  return need
end
if known or #due > 0 then
  make_way()
  -- The request of a known session has made the check.
  if not known then
    check()
  end
  spread_all()
end
drop_expired()
local at = places(session)
if #at == 0 then
  return finish({ 'unknown' })
end
local claims = claims_of(session, at)
local reply, freed = { 'released' }, {}
for i = 1, #claims do
  reply[i + 1] = claims[i][TOKEN]
end
leave({ session }, nil, freed, outcome, argument(3) == '1', limit)
settle(freed)
return finish(reply)
