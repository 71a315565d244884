-- renew_alone: KEYS: the s or the e of one resource. ARGV: now or '' | session | ttl | 's' or 'e'
--
-- Renews a holder while the slot of its resource migrates, when no call with several keys works. s
-- has the lease of a sole holder, and e has all other leases. The clock of this node may be behind
-- that of the node that had the slot, so no expiry is lowered.

local now, session, ttl = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
if ARGV[4] == 'e' then
  local expiry = tonumber(redis.call('ZSCORE', KEYS[1], session) or 0)
  if expiry <= now then
    return { 'unknown' }
  end
  redis.call('PERSIST', KEYS[1])
  redis.call('ZADD', KEYS[1], math.max(expiry, now + ttl), session)
  return { 'renewed', ttl }
end
local raw = redis.call('GET', KEYS[1])
if not raw or string.sub(raw, 1, FIELDS - 1) ~= SOLE then
  return { 'unknown' }
end
local clock, expiry, _, _, _, _, _, holder, more = struct.unpack(STATE_OF_SOLE, raw, FIELDS)
-- Nothing renews a kept hold.
if holder ~= session or expiry <= now or more ~= '' and cmsgpack.unpack(more) then
  return { 'unknown' }
end
redis.call('PERSIST', KEYS[1])
redis.call('SET', KEYS[1], SOLE .. struct.pack(CLOCK_AND_EXPIRY, clock, math.max(expiry, now + ttl)) .. string.sub(raw, AFTER_EXPIRY))
return { 'renewed', ttl }
