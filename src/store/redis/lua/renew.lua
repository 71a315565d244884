-- renew: session | listening
--
-- A waiter keeps its place, a holder keeps its grant, and a new holder claims its grant.

local session, listening = argument(1), tonumber(argument(2))

-- Renews the lease of a sole holder. The session knows its slot and how the last hold ended.
-- Nothing renews a kept hold.
local function renew_alone(s, token, seq, past, since, ttl, expiry, fixed, claims, kept)
  if kept then
    return { 'granted', expiry - now, token }
  end
  set(s, held_alone(token, seq, past, session, since, ttl, ttl > 0 and now + ttl or 0, fixed, claims))
  return { 'granted', ttl, token }
end

-- Renews the leases of the sole holder of several resources.
local renew_all_alone = n > 1 and function(at)
  local reply = { 'granted', at[1].ttl }
  for i = 1, #at do
    local r = at[i]
    reply[3 + unpacked(r.claims)[1][INDEX]] = r.token
    if r.kept then
      reply[2] = r.expiry - now
    else
      set(r.s, held_alone(
        r.token, r.seq, r.past, session, r.since, r.ttl, r.ttl > 0 and now + r.ttl or 0, r.fixed, r.claims, nil, r.names, r.last))
    end
  end
  return reply
end

--- the fast path ---

-- Most renewals come from the sole holder of a resource.
if n == 1 then
  local raw = call('GET', KEYS[1])
  if raw then
    check_format(raw)
    local _, clock, token, seq, past, holder, since, ttl, expiry, fixed, claims, kept = unpacked(raw)
    if holder == session then
      read_clock(clock)
      if expiry == 0 or now < expiry then
        return renew_alone(KEYS[1], token, seq, past, since, ttl, expiry, fixed, claims, kept)
      end
    end
    -- Other renewals come from a holder of one resource when no lease is over. The calls of other
    -- sessions notice a key that was replaced.
    local record = holder == SEVERAL and call('HMGET', KEYS[2], session)[1]
    local held = record and select(2, cmsgpack.unpack_one(record))
    if held and held[HELD] == HOLDS and not held[NAMES] and held[TTL] > 0 then
      local e, q, epoch, counters, walks = KEYS[3], KEYS[4], ttl, expiry, fixed
      read_clock(clock)
      -- The epoch comes before all expiries.
      local over = call('ZRANGE', e, '-inf', now, 'BYSCORE', 'LIMIT', 0, 2)
      local keys = call('EXISTS', KEYS[5], KEYS[6], q)
      -- The first write takes no memory, so the server accepts the next at maxmemory.
      if not walks and #over == 1 and over[1] == epoch and keys == (counters.places and 3 or 2)
        and call('PERSIST', q) and call('ZADD', e, 'XX', 'CH', now + held[TTL], session) == 1 then
        local reply, slots = { 'granted', held[TTL] }, {}
        for i = 1, #held[CLAIMS] do
          local claim = held[CLAIMS][i]
          reply[i + 2], slots[#slots + 1] = claim[TOKEN], claim[SLOT]
        end
        reply[#reply + 1], reply[#reply + 2] = slots, held[LAST]
        return reply
      end
    end
  end
else
  -- A session with several resources is mostly the sole holder of each.
  local at = states_of_all(session)
  if at then
    return renew_all_alone(at)
  end
end

--- the general path ---

begin(session)
look_for_expired()
if damaged then
  return mend()
end
local sole = resources[1]
if n == 1 and holds_alone(session) and not sole.names then
  return renew_alone(
    sole.s, sole.token, sole.seq, sole.past, sole.since, sole.ttl, sole.expiry, sole.fixed, sole.claims, sole.kept)
end
local at, lost = places(session)
local need = needed({ session }, lost)
if need then
  return need
end
if #at == n and not lost and holds_alone(session) then
  return renew_all_alone(at)
end
local more = catch_up_beside(#at > 0)
drop_lost(session)
at = places(session)
-- A session that has to call again shows that it is alive, unless its own lease is over.
for i = 1, more and #at or 0 do
  if expires(at[i].records[session]) and expiry_of(at[i], session) <= now then
    return finish(more)
  end
end
for i = 1, #at do
  local r = at[i]
  local known = r.records[session]
  if known[HELD] == TO_KEEP then
    known[HELD] = KEPT
    call('ZADD', r.e, known[SINCE] + math.min(known[KEEP_FOR], KEPT_MAX), session)
    put(r, session, known)
  elseif known[TTL] > 0 and known[HELD] ~= KEPT then
    call('ZADD', r.e, now + (known[HELD] == HOLDS and known[TTL] or known[HEARTBEAT]), session)
  end
  if known[HELD] == WAITS and known[LISTENING] ~= listening then
    known[LISTENING] = listening
    put(r, session, known)
  end
end
local known = #at > 0 and at[1].records[session]
if more and not (known and known[HELD] > WAITS) then
  return finish(more)
end
return finish(stands(session, known and known[HELD] ~= KEPT and known[TTL] or nil))
