-- renew_alone: KEYS: the s or the e of one resource. ARGV: now or '' | session | ttl | 's' or 'e'
--
-- Renews a holder while the slot of its resource migrates, when no call with several keys works. s
-- has the lease of a sole holder, and e has all other leases.

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
  redis.call('ZADD', KEYS[1], now + ttl, session)
  return { 'renewed', ttl }
end
local raw = redis.call('GET', KEYS[1])
local fields = raw and string.sub(raw, 1, 3) == '\162R2' and { cmsgpack.unpack(raw) } or {}
-- Nothing renews a kept hold, which has a twelfth value.
if fields[6] ~= session and fields[6] ~= session .. '+' or fields[9] <= now or fields[12] then
  return { 'unknown' }
end
fields[9] = now + ttl
redis.call('PERSIST', KEYS[1])
-- With claims on other resources there are fourteen values, of which the twelfth is nil.
redis.call('SET', KEYS[1], cmsgpack.pack(unpack(fields, 1, fields[14] and 14 or 11)))
return { 'renewed', ttl }
