-- break: 'dry' or nothing; the only session to break or nothing
--
-- Takes away all grants on the first resource, or that of one session, with everything else that
-- its holders hold, and tells the holders. A dry run only reports the holders, including those
-- whose leases are over.

local dry = argument(1) == 'dry'
local only = argument(dry and 2 or 1)
begin()
look_for_expired()
local r = resources[1]

local function holders()
  if not r.epoch then
    return { (not only or r.holder == only) and r.holder or nil }
  end
  local found, seen = {}, {}
  for class = 1, 5 do
    class = sub('RPWSH', class, class)
    local members = r.count[class] and call('ZRANGE', r.l, '[' .. class, '(' .. char(byte(class) + 1), 'BYLEX') or {}
    for i = 1, #members do
      local id = owner(members[i])
      if (not only or id == only) and not seen[id] and record(r, id) then
        found[#found + 1], seen[id] = id, true
      end
    end
  end
  table.sort(found, before)
  return found
end

local held = holders()
local need = needed(held, #held > 0)
if need then
  return need
end
if damaged and not dry then
  return mend()
end
if dry or #held + #due == 0 then
  local reply = told_all(held)
  table.insert(reply, 1, 'broken')
  return reply
end
make_way()
check()
spread_all()
local more = catch_up()
if more then
  return finish(more)
end
held = holders()
local reply = told_all(held)
local channels = {}
for i = 1, #held do
  channels[i] = record(r, held[i])[CHANNEL]
end
local freed = {}
leave(held, r, freed, 'broken')
settle(freed)
for i = 1, publish ~= '' and #channels or 0 do
  call(publish, channels[i], 'broken')
end
table.insert(reply, 1, 'broken')
return finish(reply)
