-- The course of an operation. Expired sessions are dropped first, and missing resources are asked
-- for before anything changes.

-- The sessions whose leases are over, in the order in which they ended, and the end of each lease.
local due, ended = {}, {}
-- Whether more leases are over than one call drops, and whether an earlier call has left walks
-- through a queue.
local crowded, has_walks = false, false

-- Returns what it costs to remove a session: its claims on the declared resources, and the
-- names that its records there have.
local function load_of(id, r)
  local at = places(id, r)
  local names = at[1] and at[1].records[id][NAMES]
  local cost = NAME_COST * math.max(#at, names and #names or 0)
  for i = 1, #at do
    cost = cost + #at[i].records[id][CLAIMS]
  end
  return cost
end

-- Takes the sessions whose leases are over, up to what one call drops. Each resource has them in
-- the order in which they ended, so the first of all is the first of a resource.
local function look_for_expired()
  local at, left = {}, LOAD
  for i = 1, n do
    has_walks = has_walks or resources[i].walks ~= nil
    at[i] = 3
  end
  while true do
    local first, id, expiry
    for i = 1, n do
      local its = resources[i].page[at[i]]
      local its_expiry = its and math.ceil(resources[i].page[at[i] + 1])
      if its and (not first or its_expiry < expiry or its_expiry == expiry and before(its, id)) then
        first, id, expiry = resources[i], its, its_expiry
      end
    end
    for i = 1, first and n or 0 do
      local r = resources[i]
      if r.page[at[i]] == id then
        local known = record(r, id)
        if not known or not expires(known) then
          disown(r)
        end
        at[i] = at[i] + 2
        if at[i] == 5 and r.epoch and not r.damaged then
          r.page = call('ZRANGE', r.e, '-inf', r.now, 'BYSCORE', 'LIMIT', 0, crowd + 2, 'WITHSCORES')
        end
      end
    end
    if not first or damaged then
      return
    end
    if not ended[id] then
      local cost = load_of(id, first)
      crowded = #due == crowd or #due > 0 and cost > left
      if crowded then
        return
      end
      due[#due + 1], ended[id], left = id, expiry, left - cost
    end
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
-- freed, the script also needs the resources of the waiters at the head of each queue, or where a
-- walk goes on. A walk that comes to a waiter without its resources is put off, and the next call
-- begins with that waiter.
local function needed(ids, frees)
  local reply, asked = { 'need' }, {}
  -- The reply has no more names than a client accepts in one reply. The client asks again for the
  -- others.
  local function want(names)
    for i = 1, names and #names or 0 do
      if #reply <= 1000 and not by_name[names[i]] and not asked[names[i]] then
        reply[#reply + 1], asked[names[i]] = names[i], true
      end
    end
  end
  local function want_all_of(id, hint)
    for i = hint and 0 or 1, n do
      local known = record(i == 0 and hint or resources[i], id)
      if known then
        local first = known[NAMES] and by_name[known[NAMES][1]]
        local at_first = first and record(first, id)
        want(at_first and at_first[NAMES] or known[NAMES])
        return known
      end
    end
  end
  local function want_heads(r)
    local from
    for i = 1, r.walks and #r.walks or 0 do
      from = from or r.walks[i][TO] and r.walks[i][NEXT]
    end
    local view = from and view_from(r, from) or r
    local at = view == r and first_place(r) or 1
    for i = at, at + heads - 1 do
      local entry = waiter(view, i)
      if not entry or i > at and #reply > HEAD_NAMES then
        break
      end
      local known = want_all_of(entry.id, r)
      -- A nested waiter passes those that wait for what its ancestors hold.
      want(known and known[ANCESTORS] ~= '' and known[HELD_ABOVE])
    end
  end
  for i = 1, #due do
    want_all_of(due[i])
  end
  for i = 1, #ids do
    want_all_of(ids[i])
  end
  -- The walks go on in the order of their numbers.
  local linked, number = {}, {}
  for i = 1, (frees or #due > 0 or has_walks) and n or 0 do
    local r = resources[i]
    if r.count.linked then
      linked[#linked + 1], number[r] = r, r.walks and r.walks[1][WHERE] or math.huge
    end
  end
  table.sort(linked, function(a, b)
    return number[a] < number[b]
  end)
  for i = 1, #linked do
    if i == 1 or #reply <= HEAD_NAMES then
      want_heads(linked[i])
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
-- has if this is its first resource. The script does nothing else, and the caller asks again. One
-- call tells a portion of the sessions. The epoch leaves e first, so the resource stays damaged
-- until all are told.
local function repair(channel)
  make_way()
  check(channel)
  local left = LOAD
  for i = 1, n do
    local r = resources[i]
    local told, sets = {}, { { r.e, 1, -1 }, { r.q, 1, 32 }, { r.l, -36, -5 }, { r.u, -36, -5 } }
    local function tell(id)
      if told[id] or #id ~= 32 or find(id, '%X') then
        return
      end
      local known = r.holder == id and with_fixed({}, r.fixed) or read_record(call('HMGET', r.d, id)[1])
      told[id], left = true, left - 2
      call(publish, known and known[CHANNEL] or sub(r.d, 1, -2) .. 'w:' .. id, 'lost')
      if known and known[CLAIMS] then
        local los, his = cuts(id, known[CLAIMS], known[HELD] > WAITS)
        change('ZREM', r.l, los)
        change('ZREM', r.u, his)
        if known[HELD] == WAITS then
          call('ZREM', r.q, queued(id, known))
        end
        call('ZREM', r.e, id)
        call('HDEL', r.d, id)
        left = left - #known[CLAIMS]
      end
    end
    -- A script reads no key that it may have emptied.
    for j = 1, r.damaged and publish ~= '' and #sets or 0 do
      sets[j].members = call('ZRANGE', sets[j][1], 0, LOAD)
    end
    for j = 1, #sets do
      local members = sets[j].members or {}
      for k = 1, #members do
        if left <= 0 then
          return { 'need' }
        end
        tell(sub(members[k], sets[j][2], sets[j][3]))
        call('ZREM', sets[j][1], members[k])
      end
      if #members > LOAD then
        return { 'need' }
      end
    end
    if r.damaged then
      if r.holder and publish ~= '' then
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

-- Removes what has kept l, u and q in place while they had no member.
local function empty(r)
  if r.is_filled then
    call('ZREM', r.l, '')
    call('ZREM', r.u, '')
  end
  if r.is_drained and not r.count.waiters then
    call('ZREM', r.q, r.epoch)
  end
  r.is_filled, r.is_drained = nil, nil
end

-- Removes the keys of a resource that no session uses any more, apart from s and h.
local function close(r)
  empty(r)
  if r.epoch then
    call('HDEL', r.d, '#epoch')
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
  local entries = r.entries or {}
  if r.forgets then
    local keeps = r.epoch or #entries > 0
    if keeps then
      redis.pcall('LPUSH', r.h, '')
      redis.pcall('PEXPIRE', r.h, IDLE_MS)
    end
    redis.pcall('LTRIM', r.h, keeps and 0 or 1, 0)
  end
  for j = math.max(1, #entries - (r.keeps or 1) + 1), #entries do
    local h, limit, ended, entry, index = unpack(entries[j], 1, 5)
    if index then
      redis.pcall('LSET', h, index, entry)
    else
      remember(h, limit, ended, entry, past_of(r)[BOUND])
    end
  end
end

-- Ends an operation, writes the state of the resources that it has changed, and makes the resources
-- quiet that no session uses any more. What the ends of holds add to the history comes last.
local function finish(reply)
  for i = 1, n do
    local r = resources[i]
    now = r.now
    empty(r)
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
-- The session of a revoked grant has to give it back.
local function granted(left, claims, last, is_revoked)
  local reply, slots = { is_revoked and 'revoked' or 'granted', left }, {}
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
        return repair()
      end
      local its = expiry - at[i].now
      left = (not left or its < left) and its or left
    end
    return granted(left or 0, claims, known[LAST], revocation(known))
  end
  local soonest
  for i = 1, n do
    local expiry = tonumber(call('ZRANGE', resources[i].e, 1, 1, 'WITHSCORES')[2])
    local left = expiry and expiry < NEVER and math.ceil(expiry) - resources[i].now
    if left and (not soonest or left < soonest) then
      soonest = left
    end
  end
  local place = call('ZCOUNT', at[1].q, '(-inf', known[SEQ])
  return { 'waiting', known[SEQ], place, soonest or 0 }
end
