-- The course of an operation. Expired sessions are dropped first, and missing resources are asked
-- for before anything changes.

-- The sessions whose leases are over, in the order in which they ended, and the end of each lease.
local due, ended = {}, {}
-- Whether more leases are over than one call drops, and whether an earlier call has left walks
-- through a queue.
local crowded, has_walks = false, false

local function look_for_expired()
  for i = 1, n do
    local r = resources[i]
    has_walks = has_walks or r.walks ~= nil
    for j = 3, #r.page, 2 do
      local known = record(r, r.page[j])
      if not known or not expires(known) then
        disown(r)
        break
      end
    end
    local page = r.page
    for j = 3, #page, 2 do
      local id, expiry = page[j], math.ceil(page[j + 1])
      if not ended[id] then
        due[#due + 1], ended[id] = id, expiry
      elseif expiry < ended[id] then
        ended[id] = expiry
      end
    end
    crowded = crowded or #page == 2 + 2 * crowd
  end
  if n > 1 and #due > 1 then
    table.sort(due, function(a, b)
      if ended[a] ~= ended[b] then
        return ended[a] < ended[b]
      end
      return before(a, b)
    end)
  end
  for i = #due, crowd + 1, -1 do
    ended[due[i]], due[i], crowded = nil, nil, true
  end
end

-- Whether a session is the sole holder of all declared resources, and no lease is over.
local function holds_alone(session)
  for i = 1, n do
    if resources[i].holder ~= session then
      return false
    end
  end
  return #due == 0
end

-- Returns the reply that asks for undeclared resources, or nil if all are declared. The script
-- needs the resources of the expired sessions and of the sessions in `ids`. If something will be
-- freed, the script also needs the resources of the waiters with several claims.
local function needed(ids, frees)
  local reply, asked = { 'need' }, {}
  -- The reply has no more names than a client accepts in one reply. The client asks again for the
  -- others.
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
  for i = 1, (frees or #due > 0 or has_walks) and n or 0 do
    for name in pairs(resources[i].with) do
      want(name)
    end
  end
  return #reply > 1 and reply or nil
end

-- Runs all commands that a script may need, in a form that changes nothing. So a user without a
-- right gets the error before anything is half done. ZADD comes first: at maxmemory the server
-- refuses it, as long as the script has written nothing. If all resources are quiet, HSET is left
-- out: it would make a d, and `open` runs it before anything is half done.
local function check(channel)
  local r = resources[1]
  call('ZADD', r.e, 'XX', 0, '')
  call('SET', r.s, r.raw or '', 'XX', 'KEEPTTL')
  call('ZREM', r.u, '')
  call('ZLEXCOUNT', r.l, '-', '-')
  call('HDEL', r.d, '')
  call('HLEN', r.d)
  call('HMGET', r.d, '')
  call('ZRANGE', r.e, 0, 0)
  call('ZCOUNT', r.e, 0, 0)
  call('ZSCORE', r.e, '')
  -- The calls before and after leave the key without a TTL.
  call('PERSIST', r.q)
  call('PEXPIRE', r.q, IDLE_MS)
  call('PERSIST', r.q)
  if publish ~= '' then
    call(publish, channel or sub(r.d, 1, -2) .. 'w:', '')
  end
  for i = 1, n do
    local r = resources[i]
    if r.epoch then
      call('HSET', r.d, '#epoch', r.epoch)
      break
    end
  end
end

-- Begins to write on a server that may be at maxmemory. After a write that takes no memory, the
-- server accepts all other writes of the script. This write changes nothing, because q never has a
-- TTL.
local function make_way()
  call('PERSIST', resources[1].q)
end

-- Drops the state of the resources whose keys do not belong together, and tells the sessions that
-- the state still names. Holders learn that they have lost the lock, and waiters that they must ask
-- again. If the record of a session is missing, the message goes to the channel that the session
-- has if this is its first resource. The script does nothing else, and the caller asks again.
local function mend(channel)
  make_way()
  check(channel)
  for i = 1, n do
    local r = resources[i]
    local told = {}
    local function tell(id)
      if not told[id] and #id == 32 and not find(id, '%X') then
        told[id] = true
        local known = r.holder == id and with_fixed({}, r.fixed) or read_record(call('HMGET', r.d, id)[1])
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
      if r.holder then
        tell(r.holder)
      end
      -- PEXPIRE removes the keys, and every user needs the right to it anyway.
      call('PEXPIRE', r.e, 0)
      call('PEXPIRE', r.q, 0)
      call('PEXPIRE', r.l, 0)
      call('PEXPIRE', r.u, 0)
      call('PEXPIRE', r.d, 0)
      if r.clock then
        now = r.now
        leave_alone(r.s, r.token, r.seq, past_of(r))
      end
    end
  end
  return { 'need' }
end

-- Gives the resources with a sole holder the keys that more sessions need. Nothing changes for the
-- holder, even if the script fails afterwards: s is written here, not only by `finish`.
local function spread_all()
  for i = 1, n do
    local r = resources[i]
    local id = r.holder
    if id then
      local known = r.records[id]
      open(r, r.since)
      count(r, 'sessions', 1)
      put(r, id, known)
      if r.expiry > 0 then
        call('ZADD', r.e, r.expiry, id)
      end
      local los, his = cuts(id, known[CLAIMS], true, r.epoch)
      change('ZADD', r.l, los)
      change('ZADD', r.u, his)
      put_state(r)
      r.is_changed = nil
    end
  end
end

-- Removes the keys of a resource that no session uses any more, apart from s and h.
local function close(r)
  if r.epoch then
    call('HDEL', r.d, '#epoch', '#with')
    call('ZREM', r.e, r.epoch)
    r.epoch = nil
  end
end

-- Whether anything is left over from earlier: expired sessions, or walks that were put off.
local function is_behind()
  return #due > 0 or has_walks
end

-- Drops the expired sessions, and carries out what earlier calls have put off. All expired sessions
-- are dropped before any request is granted. Returns a reply if the work of this call does not
-- suffice: the client repeats the call, which does nothing else until then.
local function catch_up()
  if not is_behind() then
    return
  end
  local freed, walks = {}, {}
  for i = 1, n do
    local r = resources[i]
    for j = 1, r.walks and #r.walks or 0 do
      walks[#walks + 1] = { number = r.walks[j][WHERE], order = #walks, r = r, walk = r.walks[j] }
      r.is_changed = true
    end
    r.walks = nil
  end
  table.sort(walks, function(a, b)
    return a.number < b.number or a.number == b.number and a.order < b.order
  end)
  for i = 1, #walks do
    freed[i], walks[i].walk[WHERE] = walks[i].walk, walks[i].r
  end
  leave(due, nil, freed, 'expired')
  if crowded then
    put_off(freed, 1)
  else
    settle(freed)
  end
  for i = 1, n do
    if crowded or resources[i].walks then
      return { 'need' }
    end
  end
end

-- Begins to write for a session that may be known, and catches up. The request of a known session
-- has made the check.
local function catch_up_beside(known)
  if known or is_behind() then
    make_way()
    if not known then
      check()
    end
    spread_all()
  end
  return catch_up()
end

-- Removes a session that has lost some of its claims, so that none of its claims counts.
local function drop_lost(id)
  local _, lost = places(id)
  if lost then
    local freed = {}
    leave({ id }, nil, freed)
    settle(freed)
  end
end

-- Adds what has ended to the history of a resource, or replaces an entry with an index. Of a crowd,
-- only those entries are added that the history keeps. A resource that is not quiet keeps an h.
local function remember_entries(r)
  now = r.now
  if r.forgets then
    redis.pcall('LTRIM', r.h, 1, 0)
    if r.epoch then
      redis.pcall('LPUSH', r.h, '')
      redis.pcall('PEXPIRE', r.h, KEEP_MS)
    end
  end
  local entries = r.entries or {}
  for j = math.max(1, #entries - (r.keeps or 1) + 1), #entries do
    local h, limit, ended, entry, index = unpack(entries[j], 1, 5)
    if index then
      redis.pcall('LSET', h, index, entry)
    else
      remember(h, limit, ended, entry)
    end
  end
end

-- Ends an operation, writes the state of the resources that it has changed, and makes the resources
-- quiet that no session uses any more. What the ends of holds add to the history comes last.
local function finish(reply)
  for i = 1, n do
    local r = resources[i]
    now = r.now
    local is_left = r.epoch and not next(r.count)
    if is_left then
      close(r)
      leave_alone(r.s, r.token, r.seq, past_of(r))
    elseif r.epoch and r.is_changed then
      put_state(r)
    elseif r.has_new_past and not r.holder then
      leave_alone(r.s, r.token, r.seq, past_of(r))
    end
    remember_entries(r)
    -- Only a resource that is not quiet needs an h without an entry.
    if is_left and past_of(r)[ENTERED] == past_of(r)[FIRST] then
      redis.pcall('PEXPIRE', r.h, 0)
    end
  end
  return reply
end

-- Returns the reply that a request is granted: with the rest of the lease, the token of each claim,
-- the numbers of the slots, if it has any, and how the last hold of the first resource had ended.
local function granted(left, claims, last)
  local reply, slots = { 'granted', left }, {}
  for i = 1, #claims do
    reply[i + 2] = claims[i][TOKEN]
    slots[#slots + 1] = claims[i][SLOT]
  end
  reply[#reply + 1] = #slots > 0 and slots or nil
  reply[#reply + 1] = last
  return reply
end

-- Returns the reply with the state of a session. It is granted; or waiting, with its number, its
-- place and the time until a lease ends; or unknown. The caller gives `left`, the rest of the
-- lease, if it is known already.
local function stands(id, left)
  local at = places(id)
  if #at == 0 then
    return { 'unknown' }
  end
  local claims = claims_of(id, at)
  local known = at[1].records[id]
  if known[HELD] > WAITS then
    for i = 1, not left and expires(known) and #at or 0 do
      local expiry = expiry_of(at[i], id)
      if expiry == 0 then
        disown(at[i])
        return mend()
      end
      local its = expiry - at[i].now
      left = (not left or its < left) and its or left
    end
    return granted(left or 0, claims, known[LAST])
  end
  local soonest
  for i = 1, n do
    local expiry = tonumber(call('ZRANGE', resources[i].e, 1, 1, 'WITHSCORES')[2])
    local left = expiry and math.ceil(expiry) - resources[i].now
    if left and (not soonest or left < soonest) then
      soonest = left
    end
  end
  local place = call('ZCOUNT', at[1].q, '(-inf', rank(known, claims[1]))
  return { 'waiting', known[SEQ], place, soonest or 0 }
end
