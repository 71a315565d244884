-- inspect: maximum number of holders and of waiters to report of each resource (0: no maximum)
--
-- Lists holders and waiters. Changes nothing.

begin()
local limit = tonumber(argument(1))
if limit == 0 then
  limit = math.huge
end
local reply = { 'listing', now }
for i = 1, n do
  local r = resources[i]
  local told_of, seen, left = { r.name, r.count.waiters or 0 }, {}, limit
  local function tell(id, place)
    if record(r, id) and not seen[id] then
      seen[id], left = true, left - 1
      told_of[#told_of + 1] = told(id, { r }, expiry_of(r, id), place)
    end
  end
  if r.holder then
    tell(r.holder)
  end
  for class = 1, r.epoch and 5 or 0 do
    class = sub('RPWSH', class, class)
    local from = '[' .. class
    while r.count[class] and left > 0 do
      local members = call('ZRANGE', r.l, from, '(' .. char(byte(class) + 1), 'BYLEX', 'LIMIT', 0, 1024)
      for j = 1, #members do
        if left > 0 then
          tell(owner(members[j]))
        end
      end
      if #members < 1024 then
        break
      end
      from = '(' .. members[1024]
    end
  end
  left = limit
  local waiting = {}
  local place = number_waiters(r, function(entry)
    waiting[#waiting + 1] = entry.id
    return #waiting < limit
  end)
  for j = 1, #waiting do
    tell(waiting[j], place)
  end
  reply[#reply + 1] = told_of
end
return reply
