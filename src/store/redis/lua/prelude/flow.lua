-- The course of an operation: what has expired is dropped first; what more has to be declared is
-- asked for before anything is changed; and what people are told.

-- The sessions whose leases are over, in the order in which they ended, and when each did.
local due, ended = {}, {}
local crowded = false

-- All of them are looked for where they are only to be told of.
local function look_for_expired(all)
  for i = 1, n do
    local r = resources[i]
    if all and #r.page > 0 then
      r.page = call('ZRANGE', r.e, '-inf', now, 'BYSCORE', 'WITHSCORES')
    end
    for j = 3, #r.page, 2 do
      local known = record(r, r.page[j])
      if not known or known[TTL] == 0 then
        disown(r)
        break
      end
    end
    local page = r.page
    for j = 3, #page, 2 do
      local id, expiry = page[j], tonumber(page[j + 1])
      if not ended[id] then
        due[#due + 1], ended[id] = id, expiry
      elseif expiry < ended[id] then
        ended[id] = expiry
      end
    end
    crowded = crowded or #page == 2 + 2 * CROWD
  end
  if n > 1 and #due > 1 then
    table.sort(due, function(a, b)
      if ended[a] ~= ended[b] then
        return ended[a] < ended[b]
      end
      return before(a, b)
    end)
  end
end

-- The reply that asks for the other resources of the expired, of the sessions in `ids`, and, where
-- something will be freed, of whoever waits with several claims; or nil where all are declared.
local function needed(ids, frees)
  local reply, asked = { 'need' }, {}
  -- Not more than a client takes in one reply; it asks again for the others.
  local function want(name)
    if #reply <= 1000 and not by_name[name] and not asked[name] then
      reply[#reply + 1], asked[name] = name, true
    end
  end
  local function want_all_of(id)
    for i = 1, n do
      local known = record(resources[i], id)
      local names = known and known[NAMES]
      if names then
        local first = by_name[names[1]]
        local at_first = first and record(first, id)
        names = at_first and at_first[NAMES] or names
        for j = 1, #names do
          want(names[j])
        end
      end
      if known then
        return
      end
    end
  end
  for i = 1, #due do
    want_all_of(due[i])
  end
  for i = 1, #ids do
    want_all_of(ids[i])
  end
  for i = 1, (frees or #due > 0) and n or 0 do
    for name in pairs(resources[i].with) do
      want(name)
    end
  end
  return #reply > 1 and reply or nil
end

-- Does, where it changes nothing, all that some script may have to do, so that a user who lacks a
-- right learns it before anything is half done. ZADD comes first: at maxmemory it is refused, as
-- long as nothing was written. HSET comes last, for it moves the clock on; where nothing is known
-- of any resource there is nothing yet that could be half done.
local function check(channel)
  local r = resources[1]
  call('ZADD', r.e, 'XX', 0, '')
  call('ZREM', r.u, '')
  call('ZLEXCOUNT', r.l, '-', '-')
  call('HDEL', r.d, '')
  call('ZSCORE', r.e, '')
  -- Before and after, so that no key is left with a TTL.
  call('PERSIST', r.q)
  call('PEXPIRE', r.q, IDLE)
  call('PERSIST', r.q)
  if publish ~= '' then
    call(publish, channel or sub(r.d, 1, -2) .. 'w:', '')
  end
  for i = 1, n do
    if resources[i].known then
      call('HSET', resources[i].d, '#clock', now)
      break
    end
  end
end

-- Begins to write at a server that may be at maxmemory: what follows a write that takes no memory
-- is let through. This one changes nothing, for q never has a TTL.
local function make_way()
  call('PERSIST', resources[1].q)
end

-- Drops the state of the resources whose keys do not belong together, and tells the sessions that
-- it still knows of: holders that they have lost the lock, waiters that they have to ask anew.
-- Without its record a session is told on the channel that it has if this is its first resource.
-- Nothing else is done: the caller asks again.
local function mend(channel)
  make_way()
  check(channel)
  for i = 1, n do
    local r = resources[i]
    local told = {}
    local function tell(id)
      if not told[id] and #id == 32 and not find(id, '%X') then
        told[id] = true
        local known = unpacked(call('HMGET', r.d, id)[1])
        call(publish, known and known[CHANNEL] or sub(r.d, 1, -2) .. 'w:' .. id, 'lost')
      end
    end
    local function tell_all(set, first, last)
      local members = publish ~= '' and call('ZRANGE', set, 0, -1) or {}
      for j = 1, #members do
        tell(sub(members[j], first, last))
      end
    end
    if r.damaged then
      tell_all(r.e, 1, -1)
      tell_all(r.q, 1, 32)
      tell_all(r.l, -36, -5)
      tell_all(r.u, -36, -5)
      -- Which removes them, with a right that is needed anyway.
      call('PEXPIRE', r.e, 0)
      call('PEXPIRE', r.q, 0)
      call('PEXPIRE', r.l, 0)
      call('PEXPIRE', r.u, 0)
      call('PEXPIRE', r.d, 0)
      if r.known then
        call('HSET', r.d, '#clock', now, '#seq', r.seq, '#token', r.token)
        call('PEXPIRE', r.d, IDLE)
      end
    end
  end
  return { 'need' }
end

local function drop_expired()
  if #due > 0 then
    local freed = {}
    leave(due, nil, freed)
    settle(freed)
  end
end

-- Removes a session that has lost a part of its claims, so that it counts nowhere.
local function drop_lost(id)
  local _, lost = places(id)
  if lost then
    local freed = {}
    leave({ id }, nil, freed)
    settle(freed)
  end
end

-- Lets the state of resources go that nobody holds or waits for any more.
local function finish(reply)
  for i = 1, n do
    if resources[i].changed and not next(resources[i].count) then
      call('PEXPIRE', resources[i].d, IDLE)
    end
  end
  return reply
end

-- Begins to change what a session holds of the first resource. Gives the reply with which that ends
-- already, or nil.
local function begin_change(session)
  begin(session)
  look_for_expired()
  if damaged then
    return mend()
  end
  local at, lost = places(session)
  local known = #at > 0
  -- Its next renewal drops the rest.
  if lost then
    return { 'unknown' }
  end
  local need = needed({}, known)
  if need then
    return need
  end
  if known or #due > 0 then
    make_way()
    check()
  end
  drop_expired()
  return #places(session) == 0 and finish({ 'unknown' }) or nil
end

-- How a session stands: granted with what is left of its lease and its tokens, waiting with its
-- number, its place and how long until a lease ends; or unknown. `left` is what is left of its
-- lease where that is known already. Where it waits and more are expired, it is told that nothing
-- more is needed than to ask again.
local function stands(id, left)
  local at = places(id)
  if #at == 0 then
    return { 'unknown' }
  end
  local claims = claims_of(id, at)
  local known = at[1].records[id]
  if known[HELD] == 1 then
    for i = 1, not left and known[TTL] > 0 and #at or 0 do
      local expiry = tonumber(call('ZSCORE', at[i].e, id) or 0)
      if expiry == 0 then
        disown(at[i])
        return mend()
      end
      local its = expiry - now
      left = (not left or its < left) and its or left
    end
    -- It is over as well, and is dropped with the next of a crowd.
    if known[TTL] > 0 and left <= 0 then
      return { 'need' }
    end
    local reply = { 'granted', left or 0 }
    for i = 1, #claims do
      reply[i + 2] = claims[i][TOKEN]
    end
    return reply
  end
  if crowded then
    return { 'need' }
  end
  local soonest
  for i = 1, n do
    local expiry = tonumber(call('ZRANGE', resources[i].e, 1, 1, 'WITHSCORES')[2])
    if expiry and (not soonest or expiry < soonest) then
      soonest = expiry
    end
  end
  local place = call('ZCOUNT', at[1].q, '(-inf', rank(known, claims[1]))
  return { 'waiting', known[SEQ], place, soonest and soonest - now or 0 }
end

-- A session as it is told: of its claims those on the resources in `at`, with their places in the
-- queue where these are known.
local function told(id, at, expiry, place)
  local known = at[1].records[id]
  local reply = {
    id, expiry or 0, known[HELD], known[SEQ], known[SINCE], known[TTL], known[LEASE], known[HEARTBEAT], known[ANCESTORS], known[PROCESS],
  }
  for i = 1, #at do
    for j = 1, #at[i].records[id][CLAIMS] do
      local claim = at[i].records[id][CLAIMS][j]
      reply[#reply + 1] = {
        claim[INDEX], at[i].name, plain(claim[MODE]), claim[MODE] == 'h' and 1 or 0, claim[SLOTS], claim[TEXT], claim[TOKEN],
        claim[NESTED], place and place[id .. (claim[NESTED] == 1 and '1' or '0')] or 0,
      }
    end
  end
  return reply
end

-- The same, with all claims, for sessions that are about to leave.
local function told_all(ids)
  local reply = {}
  for i = 1, #ids do
    local at = places(ids[i])
    if #at > 0 then
      local expiry = ended[ids[i]] or tonumber(call('ZSCORE', at[1].e, ids[i]) or 0)
      reply[#reply + 1] = told(ids[i], at, expiry)
    end
  end
  return reply
end

-- The places in a queue: by session and 0 or 1 for ordinary and nested claims. Calls `visit` with
-- each waiter until it says no.
local function number_waiters(r, visit)
  local place, number, last, at = {}, 0, nil, 1
  while r.count.waiters do
    local entry = waiter(r, at)
    if not entry then
      break
    end
    if not r.left[entry.id] then
      if entry.id ~= last then
        number, last = number + 1, entry.id
      end
      place[entry.id .. (entry.score < 0 and '1' or '0')] = number
      if not visit(entry) then
        break
      end
    end
    at = at + 1
  end
  return place
end
