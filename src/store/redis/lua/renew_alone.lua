-- renew_alone: KEYS: the e of one resource. ARGV: now or '' | session | ttl
--
-- Renews a holder while the slot of its resource migrates, when no call with several keys works.

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local expiry = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[2]) or 0)
if expiry <= now then
  return { 'unknown' }
end
redis.call('PERSIST', KEYS[1])
redis.call('ZADD', KEYS[1], now + tonumber(ARGV[3]), ARGV[2])
return { 'renewed', tonumber(ARGV[3]) }
