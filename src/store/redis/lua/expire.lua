-- expire: 'dry' or nothing
--
-- Drops every session whose lease is over, and reports these sessions. A dry run only reports them.

local dry = argument(1) == 'dry'
begin()
look_for_expired(dry)
if damaged and not dry then
  return mend()
end
local need = needed({}, false)
if need then
  return need
end
if #due == 0 then
  return { 'expired' }
end
local reply = told_all(due)
if not dry then
  make_way()
  check()
  spread_all()
  drop_expired()
end
table.insert(reply, 1, 'expired')
return finish(reply)
