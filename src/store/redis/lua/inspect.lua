-- inspect: maximum number of holders and of waiters to report of each resource (0: no maximum) | live
--
-- Lists holders and waiters. Changes nothing. With `live`, for the search for a deadlock, it leaves
-- out waiters that listen and have no subscriber, because they are dead or cut off. The names held
-- above a waiter then include those of its own request, which lead further as well.

begin()
local limit, is_live = tonumber(argument(1)), argument(2) == 'live'
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
    local known = is_live and record(r, waiting[j])
    for k = 1, known and known[NAMES] and #known[NAMES] or 0 do
      known[HELD_ABOVE][#known[HELD_ABOVE] + 1] = known[NAMES][k]
    end
    if not (known and known[LISTENING] == 1 and publish ~= '' and subscribers(known[CHANNEL]) == 0) then
      tell(waiting[j], place)
    end
  end
  reply[#reply + 1] = told_of
end
return reply
