-- expire: 'dry' or an empty text | the ids of sessions
--
-- Drops sessions whose leases are over, and reports them. A dry run changes nothing and reports
-- those of the named sessions whose leases are over. They have claims on the first resource.

begin()
if ARGV[3] == 'dry' then
  local over = {}
  for i = 1, #ARGV[4], 32 do
    local id = sub(ARGV[4], i, i + 31)
    local known = record(resources[1], id)
    if known and expires(known) and expiry_of(resources[1], id) <= resources[1].now then
      over[#over + 1] = id
    end
  end
  local need = needed(over, false)
  if need then
    return need
  end
  local reply = told_all(over)
  table.insert(reply, 1, 'expired')
  return reply
end
look_for_expired()
if damaged then
  return repair()
end
local need = needed({}, false)
if need then
  return need
end
if not is_behind() then
  return { 'expired' }
end
local reply = told_all(due)
make_way()
check()
spread_all()
local more = catch_up()
-- The caller repeats the call until no session is left to report.
if more and #reply == 0 then
  return finish(more)
end
table.insert(reply, 1, 'expired')
return finish(reply)
