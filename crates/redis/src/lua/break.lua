-- break: 'dry' or an empty text | the only session to break, or an empty text | where to go on, or
--   an empty text | the process that revokes the grants, or an empty text
--
-- Revokes the grants on the first resource, or that of one session, and tells the holders. With a
-- process, the session of a grant whose command may run holds until it gives the grant back; all
-- others lose everything that they hold. A call does this for a limited number of sessions. The
-- reply begins with the place where the next call goes on, which is empty if these are all. The
-- next call leaves the grants whose tokens are higher than those of the first call. A dry run only
-- reports the holders, including those whose leases are over.

local dry = ARGV[3] == 'dry'
local only, from, by = ARGV[4], ARGV[5], ARGV[6]
begin()
look_for_expired()
local r = resources[1]

-- Maximum number of held claims that one call looks at.
local LOOKED_AT = 1000

-- A place is the highest token of the first call, 1 if earlier calls of this walk along l have
-- found a holder, else 0, and the last member of l.
local token, has_found, last = string.match(from, '^(%d+) ([01]) (.*)$')
local newest = tonumber(token)

-- Returns the holders that this call is about, and where the next call goes on.
local function holders()
  if only ~= '' then
    local known = record(r, only)
    return { known and known[HELD] > WAITS and only or nil }, ''
  end
  local found, seen, looked, left = {}, {}, 0, LOAD
  local highest = newest or r.token
  -- Sessions that stay in place are reported at the member of their first claim.
  local function counts(member)
    return not dry and by == '' or first_index(r, owner(member)) == tonumber(sub(member, -4), 16)
  end
  -- Whether an earlier call of this break has revoked the grant.
  local function is_reported(known)
    local revoked = from ~= '' and revocation(known)
    return revoked and revoked[2] == by
  end
  -- Returns whether this call has no room for the session.
  local function look(id)
    local known = not seen[id] and record(r, id)
    if known and known[CLAIMS][1][TOKEN] <= highest and not is_reported(known) then
      local cost = load_of(id, r)
      if #found == CROWD or #found > 0 and cost > left then
        return true
      end
      found[#found + 1], seen[id], left = id, true, left - cost
    end
  end
  if r.holder then
    look(r.holder)
    return found, ''
  end
  local member, more = last ~= '' and last, r.epoch and not r.damaged
  while more do
    local members = call('ZRANGE', r.l, member and '(' .. member or '[A', '([', 'BYLEX', 'LIMIT', 0, BATCH)
    for i = 1, #members do
      if looked == LOOKED_AT or counts(members[i]) and look(owner(members[i])) then
        table.sort(found, before)
        return found, format('%.0f %d ', highest, (has_found == '1' or #found > 0) and 1 or 0) .. member
      end
      member, looked = members[i], looked + 1
    end
    more = #members == BATCH
  end
  table.sort(found, before)
  -- A holder that has lowered its mode between two calls may be behind the walk.
  local again = not dry and last and last ~= '' and (has_found == '1' or #found > 0)
  return found, again and format('%.0f 0 ', highest) or ''
end

local held, rest = holders()
local need = needed(held, #held > 0)
if need then
  return need
end
if damaged and not dry then
  return repair()
end
if dry or #held == 0 and not is_behind() then
  local reply = told_all(held)
  table.insert(reply, 1, 'broken')
  table.insert(reply, 2, rest)
  return reply
end
make_way()
check()
spread_all()
-- After a call that has dropped sessions, the client repeats it: the holders that follow may have
-- claims on resources that this call does not declare.
local more = catch_up() or is_behind() and { 'need' }
if more then
  return finish(more)
end
held, rest = holders()
local reply = told_all(held)

local function revoke(id)
  local at = places(id, r)
  for i = 1, #at do
    local known = at[i].records[id]
    local revoked = revocation(known)
    known[MORE] = known[MORE] or {}
    known[MORE].revoked = { revoked and revoked[1] or at[i].now, by }
    put(at[i], id, known)
  end
end

local channels, leaving = {}, {}
for i = 1, #held do
  local known = record(r, held[i])
  channels[i] = known[CHANNEL]
  if by == '' or known[HELD] ~= HOLDS or is_unclaimed(r, held[i], known) then
    leaving[#leaving + 1] = held[i]
  else
    revoke(held[i])
  end
end
local freed = {}
leave(leaving, r, freed, 'broken')
settle(freed)
for i = 1, publish ~= '' and #channels or 0 do
  call(publish, channels[i], 'broken')
end
table.insert(reply, 1, 'broken')
table.insert(reply, 2, rest)
return finish(reply)
