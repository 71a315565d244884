-- renew: session | listening
--
-- A waiter keeps its place, a holder keeps its grant, and a new holder claims its grant.

local session, listening = argument(1), tonumber(argument(2))
begin(session)

-- Most renewals come from a holder of one resource when no lease is over. They need none of the
-- remaining prelude.
local own = resources[1]
local held = n == 1 and own.records[session]
if held and held[HELD] == 1 and held[TTL] > 0 and not held[NAMES] and #own.page == 2 then
  local reply = { 'granted', held[TTL] }
  for i = 1, #held[CLAIMS] do
    reply[held[CLAIMS][i][INDEX] + 3] = held[CLAIMS][i][TOKEN]
  end
  -- The first write takes no memory, so the server accepts the others at maxmemory.
  call('PERSIST', own.q)
  call('ZADD', own.e, now + held[TTL], session)
  call('HSET', own.d, '#clock', now)
  return reply
end

--- the rest of the prelude ---

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
