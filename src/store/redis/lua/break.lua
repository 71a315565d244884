-- break: 'dry' or nothing; the only session to break, or an empty text | where to go on, or an empty
--   text
--
-- Takes away the grants on the first resource, or that of one session, with everything else that
-- the holders hold, and tells the holders. A call does this for at most CROWD sessions. The reply
-- begins with the place where the next call goes on, which is empty if these are all. The next call
-- leaves the grants that are newer than the first call. A dry run only reports the holders,
-- including those whose leases are over.

local dry = argument(1) == 'dry'
local only, from = argument(dry and 2 or 1), argument(dry and 3 or 2)
begin()
look_for_expired()
local r = resources[1]

-- Maximum number of held claims that one call looks at.
local LOOKS = 1000

-- Returns the holders that this call is about, and where the next call goes on: the highest token
-- of the first call, and the last member of l.
local function holders()
  if not r.epoch or only ~= '' then
    local id = only == '' and r.holder or only
    local known = id and record(r, id)
    return { known and known[HELD] > WAITS and id or nil }, ''
  end
  local token, last = string.match(from, '^(%d+) (.*)$')
  local found, seen, looked, newest = {}, {}, 0, tonumber(token) or r.token
  repeat
    local members = call('ZRANGE', r.l, last and '(' .. last or '[A', '([', 'BYLEX', 'LIMIT', 0, BATCH)
    for i = 1, #members do
      if #found == CROWD or looked == LOOKS then
        return found, format('%.0f ', newest) .. last
      end
      last, looked = members[i], looked + 1
      local id = owner(last)
      local known = not seen[id] and record(r, id)
      if known and known[CLAIMS][1][TOKEN] <= newest then
        found[#found + 1], seen[id] = id, true
      end
    end
  until #members < BATCH
  table.sort(found, before)
  return found, ''
end

local held, rest = holders()
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
  table.insert(reply, 2, rest)
  return reply
end
make_way()
check()
spread_all()
local more = catch_up()
if more then
  return finish(more)
end
held, rest = holders()
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
table.insert(reply, 2, rest)
return finish(reply)
