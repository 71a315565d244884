-- inspect: maximum number of holders and of waiters to report of each resource (0: no maximum) |
--   'live' or an empty text | number of claims after which the reply ends (0: no maximum) | where
--   the listing of the first resource goes on, or an empty text; 'l' is the first holder
--
-- Lists the waiters and then the holders of each resource. Changes nothing. The reply begins with
-- the place where the listing of its last resource goes on, which is empty if that listing is
-- complete. A reply that ends early leaves out the next resources. With `live`, for the search for
-- a deadlock, it leaves out sessions whose lease is over, because the next script drops them, and
-- waiters that listen and have no subscriber, because they are dead or cut off. The names held
-- above a waiter then include those of its own request, which lead further as well.

begin()
local function maximum(text)
  local k = tonumber(text)
  return k > 0 and k or math.huge
end
local limit, is_live, left = maximum(ARGV[3]), ARGV[4] == 'live', maximum(ARGV[5])
-- A listing with a maximum is not continued. It has some waiters and some holders of each resource.
local share = limit < math.huge and LOAD / 4 / n

-- Lists a resource from a place on, and returns where the listing goes on. A place among the
-- waiters is 'q', a session and its score; a place among the holders is 'l' and a member of l.
local function list(r, from, told_of)
  local seen, shown = {}, 0
  left = share or left
  local function tell(id, place)
    local known = not seen[id] and record(r, id)
    if known and not (is_live and expires(known) and expiry_of(r, id) <= r.now) then
      seen[id], left, shown = true, left - #known[CLAIMS], shown + 1
      told_of[#told_of + 1] = told(id, { r }, expiry_of(r, id), place)
    end
  end
  if r.holder then
    tell(r.holder)
    return ''
  end
  -- The waiters come first: of a session that is granted its request between two calls, the later
  -- call lists the hold.
  local last = sub(from, 1, 1) == 'l' and sub(from, 2)
  if not last then
    local waiting, most, id, score = {}, math.min(limit, left), sub(from, 2, 33), tonumber(sub(from, 34))
    r.after = score and sub(from, 34)
    local place = number_waiters(r, function(entry)
      if not score or entry.score > score or before(id, entry.id) then
        waiting[#waiting + 1] = entry
      end
      return #waiting < most
    end)
    local is_cut = #waiting >= left
    for i = 1, #waiting do
      local known = is_live and record(r, waiting[i].id)
      for j = 1, known and known[NAMES] and #known[NAMES] or 0 do
        known[HELD_ABOVE][#known[HELD_ABOVE] + 1] = known[NAMES][j]
      end
      if not (known and known[LISTENING] == 1 and publish ~= '' and subscribers(known[CHANNEL]) == 0) then
        tell(waiting[i].id, place)
      end
      local is_over = left <= 0 or is_cut and i == #waiting
      if is_over and share then
        break
      elseif is_over then
        return 'q' .. waiting[i].id .. format('%.0f', waiting[i].score)
      end
    end
  end
  shown, left = 0, share or left
  -- Each session is listed at the member of its first claim, so that it is in one reply only.
  local function is_first(id, member)
    return first_index(r, id) == tonumber(sub(member, -4), 16)
  end
  local more = r.epoch and not r.damaged
  while more and shown < limit do
    -- Held claims are in the classes with capitals.
    local members = call('ZRANGE', r.l, last and '(' .. last or '[A', '([', 'BYLEX', 'LIMIT', 0, BATCH)
    for i = 1, #members do
      if left <= 0 then
        return share and '' or 'l' .. last
      end
      last = members[i]
      -- The members of other claims take a little time, too.
      left = left - 0.1
      if shown < limit and is_first(owner(last), last) then
        tell(owner(last))
      end
    end
    more = #members == BATCH
  end
  return ''
end

local reply, from = { 'listing', latest, '' }, ARGV[6]
for i = 1, n do
  if reply[3] == '' and (share or left > 0) then
    local told_of = { resources[i].name, resources[i].count.waiters or 0 }
    reply[3] = list(resources[i], i == 1 and from or '', told_of)
    reply[#reply + 1] = told_of
  end
end
return reply
