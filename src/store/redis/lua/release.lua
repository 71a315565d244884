-- release: session
--
-- Gives back a grant, or a place in the queue.

local session = argument(1)
begin(session)
look_for_expired()
local known = #places(session) > 0
local need = needed({ session }, known)
if need then
  return need
end
if known or #due > 0 then
  make_way()
  -- Alone it is asked for less than its grant was.
  if #due > 0 or resources[1].count.waiters then
    check()
  end
end
drop_expired()
if #places(session) == 0 then
  return finish({ 'unknown' })
end
local freed = {}
leave({ session }, nil, freed)
settle(freed)
return finish({ 'done' })
