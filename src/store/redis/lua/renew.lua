-- renew: session | listening
--
-- A waiter keeps its place, a holder its grant, a new holder claims it.

local session, listening = argument(1), tonumber(argument(2))
begin(session)
look_for_expired()
local need = needed({ session }, false)
if need then
  return need
end
local at = places(session)
if #due > 0 or #at > 0 then
  make_way()
end
if #due > 0 then
  check()
end
drop_expired()
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
return finish(stands(session))
