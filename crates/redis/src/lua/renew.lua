-- renew: session | listening
--
-- A waiter keeps its place, a holder keeps its grant, and a new holder claims its grant.

local session, listening = ARGV[3], tonumber(ARGV[4])

--- the fast path ---

-- Most renewals come from the sole holder of a resource.
if n == 1 then
  local raw = call('GET', KEYS[1])
  local kind = raw and string.sub(raw, 1, FIELDS - 1)
  if kind == SOLE then
    local clock, expiry, token, _, _, _, ttl, holder, more = struct.unpack(STATE_OF_SOLE, raw, FIELDS)
    if holder == session and more == '' then
      read_clock(clock)
      if expiry == 0 or now < expiry then
        local s = KEYS[1]
        renew_alone(s, raw, ttl)
        return { 'granted', ttl, token }
      end
    end
  elseif kind == SEVERAL then
    -- Other renewals come from a holder of one resource when no lease is over. The calls of other
    -- sessions notice a key that was replaced.
    local record = call('HMGET', KEYS[2], session)[1]
    local held = record and select(2, cmsgpack.unpack_one(record))
    if held and held[HELD] == HOLDS and not held[NAMES] and held[TTL] > 0 and not held[MORE] then
      local clock, _, _, _, rest = struct.unpack(STATE_OF_SEVERAL, raw, FIELDS)
      local _, epoch, counters, walks = unpacked(string.sub(raw, rest))
      local e, q = KEYS[3], KEYS[4]
      read_clock(clock)
      -- The epoch comes before all expiries.
      local over = call('ZRANGE', e, '-inf', now, 'BYSCORE', 'LIMIT', 0, 2)
      local keys = call('EXISTS', KEYS[5], KEYS[6], q)
      -- The first write takes no memory, so the server accepts the next at maxmemory.
      if not walks and #over == 1 and over[1] == epoch and keys == (counters.waiters and 3 or 2)
        and call('PERSIST', q) and call('ZADD', e, 'XX', 'GT', 'CH', now + held[TTL], session) == 1 then
        local reply, slots = { 'granted', held[TTL] }, {}
        for i = 1, #held[CLAIMS] do
          local claim = held[CLAIMS][i]
          reply[i + 2], slots[#slots + 1] = claim[TOKEN], claim[SLOT]
        end
        reply[#reply + 1] = #slots > 0 and slots or nil
        reply[#reply + 1] = held[LAST]
        return reply
      end
    end
  end
end

--- both paths ---

-- Renews the lease of a sole holder, whose state is `raw`. If the server is at maxmemory, it
-- accepts the write after one that takes no memory. If the user lacks the right to SETRANGE, SET
-- does it.
local function renew_alone(s, raw, ttl)
  local fields = struct.pack(CLOCK_AND_EXPIRY, now, ttl > 0 and now + ttl or 0)
  if type(redis.pcall('SETRANGE', s, BEFORE_CLOCK, fields)) == 'table' then
    call('PERSIST', s)
    call('SET', s, SOLE .. fields .. string.sub(raw, AFTER_EXPIRY))
  end
end

-- Renews the leases of the sole holder of some resources, and returns the reply. The session knows
-- its slots and how the last hold ended. Nothing renews a kept hold.
local function renew_all_alone(at)
  local reply = { 'granted', at[1].ttl }
  for i = 1, #at do
    local r = at[i]
    reply[3 + r.index], now = r.token, r.now
    if r.kept then
      reply[2] = r.expiry - now
    else
      renew_alone(r.s, r.raw, r.ttl)
    end
  end
  return reply
end

--- the fast path for several resources ---

-- A session with several resources is mostly the sole holder of each.
local at = n > 1 and states_of_all(session)
if at then
  return renew_all_alone(at)
end

--- the general path ---

begin(session)
look_for_expired()
if damaged then
  return repair()
end
local sole = resources[1]
if n == 1 and holds_alone(session) and not sole.names then
  return renew_all_alone(resources)
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

-- Whether a waiter shows its regular sign of life. One that was away passes over nobody: other
-- waiters may be about to come back, too.
local function is_at_heartbeat(known)
  local silent = at[1].now - expiry_of(at[1], session) + known[HEARTBEAT]
  return silent >= 0.3 * known[HEARTBEAT] and silent <= 0.5 * known[HEARTBEAT]
end

-- A waiter passes over the dead waiters ahead of it as a new request does.
local known = #at > 0 and at[1].records[session]
if known and known[HELD] == WAITS and not more and publish ~= '' and is_at_heartbeat(known) then
  local claims, where = claims_of(session, at)
  local freed, _ = {}
  _, more = pass_over_the_dead(claims, where, kin_of(session, known[ANCESTORS]), known[SEQ], freed)
  settle(freed)
  at = places(session)
end
-- A session that has to call again shows that it is alive, unless its own lease is over.
for i = 1, more and #at or 0 do
  if expires(at[i].records[session]) and expiry_of(at[i], session) <= at[i].now then
    return finish(more)
  end
end
local left
for i = 1, #at do
  local r = at[i]
  local known = r.records[session]
  if known[HELD] == TO_KEEP then
    known[HELD] = KEPT
    call('ZADD', r.e, kept_until(known[SINCE], known[KEEP_FOR]), session)
    put(r, session, known)
  elseif known[TTL] > 0 and known[HELD] ~= KEPT then
    -- After a step back of the clock, the lease lasts longer than the holder is told.
    left = known[HELD] == HOLDS and known[TTL] or known[HEARTBEAT]
    call('ZADD', r.e, r.now + math.max(left, expiry_of(r, session) - r.now), session)
  end
  if known[HELD] == WAITS and known[LISTENING] ~= listening then
    known[LISTENING] = listening
    put(r, session, known)
  end
end
known = #at > 0 and at[1].records[session]
if more and not (known and known[HELD] > WAITS) then
  return finish(more)
end
return finish(stands(session, known and known[HELD] == HOLDS and left or nil))
