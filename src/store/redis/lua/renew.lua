-- renew: session | listening
--
-- A waiter keeps its place, a holder keeps its grant, and a new holder claims its grant.

local session, listening = argument(1), tonumber(argument(2))

--- the fast path ---

-- Most renewals come from a holder of one resource when no lease is over. The calls of other
-- sessions notice a key that was replaced.
if n == 1 then
  local d, e, q, l, u = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
  local meta = call('HMGET', d, '#clock', '#epoch', '#count', session, '#format')
  check_format(meta[5])
  local held = meta[2] and meta[3] and unpacked(meta[4])
  if held and held[HELD] == 1 and held[TTL] > 0 and not held[NAMES] then
    read_clock(meta[1])
    -- The epoch comes before all expiries.
    local over = call('ZRANGE', e, '-inf', now, 'BYSCORE', 'LIMIT', 0, 2)
    local keys = call('EXISTS', l, u, q)
    -- The first write takes no memory, so the server accepts the others at maxmemory.
    if #over == 1 and over[1] == meta[2] and keys == (unpack_record(meta[3]).places and 3 or 2)
      and call('PERSIST', q) and call('ZADD', e, 'XX', 'CH', now + held[TTL], session) == 1 then
      call('HSET', d, '#clock', now)
      local reply = { 'granted', held[TTL] }
      for i = 1, #held[CLAIMS] do
        reply[held[CLAIMS][i][INDEX] + 3] = held[CLAIMS][i][TOKEN]
      end
      return reply
    end
  end
end

--- the general path ---

begin(session)
look_for_expired()
if damaged then
  return mend()
end
local at, lost = places(session)
local need = needed({ session }, lost)
if need then
  return need
end
if #due > 0 or #at > 0 then
  make_way()
end
if #due > 0 or lost then
  check()
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
    put(r, session, pack(known))
  else
    call('HSET', r.d, '#clock', now)
  end
end
return finish(stands(session, #at > 0 and at[1].records[session][TTL] or nil))
