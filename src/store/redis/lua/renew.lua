-- renew: session | listening
--
-- A waiter keeps its place, a holder keeps its grant, and a new holder claims its grant.

local session, listening = argument(1), tonumber(argument(2))

-- Renews the lease of a sole holder.
local function renew_alone(s, token, seq, past, since, ttl, fixed, claims)
  set(s, held_alone(token, seq, past, session, since, ttl, fixed, claims))
  return { 'granted', ttl, token }
end

--- the fast path ---

-- Most renewals come from the sole holder of a resource.
if n == 1 then
  local raw = call('GET', KEYS[1])
  if raw then
    check_format(raw)
    local _, clock, token, seq, past, holder, since, ttl, expiry, fixed, claims = unpacked(raw)
    if holder == session then
      read_clock(clock)
      if expiry == 0 or now < expiry then
        return renew_alone(KEYS[1], token, seq, past, since, ttl, fixed, claims)
      end
    end
    -- Other renewals come from a holder of one resource when no lease is over. The calls of other
    -- sessions notice a key that was replaced.
    local record = holder == SEVERAL and call('HMGET', KEYS[2], session)[1]
    local held = record and select(2, cmsgpack.unpack_one(record))
    if held and held[HELD] == 1 and not held[NAMES] and held[TTL] > 0 then
      local e, q, epoch, counters = KEYS[3], KEYS[4], ttl, expiry
      read_clock(clock)
      -- The epoch comes before all expiries.
      local over = call('ZRANGE', e, '-inf', now, 'BYSCORE', 'LIMIT', 0, 2)
      local keys = call('EXISTS', KEYS[5], KEYS[6], q)
      -- The first write takes no memory, so the server accepts the next at maxmemory.
      if #over == 1 and over[1] == epoch and keys == (counters.places and 3 or 2)
        and call('PERSIST', q) and call('ZADD', e, 'XX', 'CH', now + held[TTL], session) == 1 then
        local reply = { 'granted', held[TTL] }
        for i = 1, #held[CLAIMS] do
          reply[held[CLAIMS][i][INDEX] + 3] = held[CLAIMS][i][TOKEN]
        end
        return reply
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
  return renew_alone(sole.s, sole.token, sole.seq, sole.past, sole.since, sole.ttl, sole.fixed, sole.claims)
end
local at, lost = places(session)
local need = needed({ session }, lost)
if need then
  return need
end
if #due > 0 or #at > 0 then
  make_way()
  -- The request of a known session has made the check.
  if #at == 0 then
    check()
  end
  spread_all()
end
drop_expired()
drop_lost(session)
at = places(session)
for i = 1, #at do
  local r = at[i]
  local known = r.records[session]
  if known[TTL] > 0 then
    call('ZADD', r.e, now + (known[HELD] == 1 and known[TTL] or known[HEARTBEAT]), session)
  end
  if known[HELD] == 0 and known[LISTENING] ~= listening then
    known[LISTENING] = listening
    put(r, session, known)
  end
end
return finish(stands(session, #at > 0 and at[1].records[session][TTL] or nil))
