-- give_up: session
--
-- Leaves the queue because the wait took too long, and counts the request as busy. A session that
-- was granted its request in the meantime keeps the grant.

local session = ARGV[3]
begin(session)
look_for_expired()
if damaged then
  return repair()
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
drop_lost(session)
local at = places(session)
local own = #at > 0 and at[1].records[session]
if not own or own[HELD] > WAITS then
  return finish(stands(session))
end
local reply, freed = { 'busy' }, {}
for i = 1, #at do
  local its = at[i].records[session]
  local streak = note_busy(at[i], its, pack(its[CLAIMS]), 'busy', its[ASKED])
  reply[2] = reply[2] or streak
end
leave({ session }, nil, freed)
settle(freed)
return finish(reply)
