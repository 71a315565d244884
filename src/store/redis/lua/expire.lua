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
if not is_behind() then
  return { 'expired' }
end
local reply = told_all(due)
if not dry then
  make_way()
  check()
  spread_all()
  local more = catch_up()
  -- The caller repeats the call until no session is left to report.
  if more and #reply == 0 then
    return finish(more)
  end
end
table.insert(reply, 1, 'expired')
return finish(reply)
