-- release: session
--
-- Gives back a grant, or a place in the queue, and returns the tokens. The tokens of a waiter are
-- 0.

local session = argument(1)
begin(session)
look_for_expired()
if damaged then
  return mend()
end
local known = #places(session) > 0
local need = needed({ session }, known)
if need then
  return need
end
if known or #due > 0 then
  make_way()
  -- Without waiters and expired sessions, the release needs fewer commands than its grant did, so
  -- no check is made.
  local alone = #due == 0
  for i = 1, n do
    alone = alone and not resources[i].count.waiters
  end
  if not alone then
    check()
  end
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
leave({ session }, nil, freed)
settle(freed)
return finish(reply)
