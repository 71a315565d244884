-- release: session
--
-- Gives back a grant, or a place in the queue, and returns the tokens. The tokens of a waiter are
-- 0.

local session = argument(1)

--- the fast path ---

-- Most releases give back the only claim on a resource that nobody waits for.
if n == 1 then
  local d, e = KEYS[1], KEYS[2]
  local meta = call('HMGET', d, '#clock', '#epoch', '#count', session, '#format')
  check_format(meta[5])
  local known = meta[2] and meta[3] and unpacked(meta[4])
  if known and known[HELD] == 1 and not known[NAMES] and #known[CLAIMS] == 1 then
    read_clock(meta[1])
    local claim, count = known[CLAIMS][1], unpack_record(meta[3])
    local class, alone = capital(claim[MODE]), true
    for counted, k in pairs(count) do
      alone = alone and k == 1 and (counted == class or counted == 'leases')
    end
    local over = alone and call('ZRANGE', e, '-inf', now, 'BYSCORE', 'LIMIT', 0, 2)
    -- A member that is missing shows that a key was lost. Then the general path drops all keys.
    if alone and #over == 1 and over[1] == meta[2] and call('ZSCORE', KEYS[5], member(class, claim[HI], session, 0))
      and call('ZREM', KEYS[4], member(class, claim[LO], session, 0)) == 1
      and call('ZREM', KEYS[5], member(class, claim[HI], session, 0)) == 1 then
      call('HDEL', d, session, '#count', '#slots', '#with', '#epoch')
      call('HSET', d, '#clock', now)
      call('ZREM', e, session, meta[2])
      call('PEXPIRE', d, IDLE)
      return { 'released', claim[TOKEN] }
    end
  end
end

--- the general path ---

begin(session)
look_for_expired()
if damaged then
  return mend()
end
local known = #places(session) > 0
local need = needed({ session }, known)
if need then
  return need
end
if known or #due > 0 then
  make_way()
  -- Without waiters and expired sessions, the release needs fewer commands than its grant did, so
  -- no check is made.
  local alone = #due == 0
  for i = 1, n do
    alone = alone and not resources[i].count.waiters
  end
  if not alone then
    check()
  end
end
drop_expired()
local at = places(session)
if #at == 0 then
  return finish({ 'unknown' })
end
local claims = claims_of(session, at)
local reply, freed = { 'released' }, {}
for i = 1, #claims do
  reply[i + 1] = claims[i][TOKEN]
end
leave({ session }, nil, freed)
settle(freed)
return finish(reply)
