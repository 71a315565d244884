-- expire: nothing
--
-- Drops every session whose lease is over, and tells which.

begin()
look_for_expired()
local need = needed({}, false)
if need then
  return need
end
if #due == 0 then
  return { 'expired' }
end
local reply = told_all(due)
make_way()
check()
drop_expired()
table.insert(reply, 1, 'expired')
return finish(reply)
