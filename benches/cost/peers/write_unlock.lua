-- Releases a write lock with the commands of Redisson's script.
-- KEYS: lock, channel, latch. ARGV: message, lease, holder, lifetime of the latch.
local lock, channel, latch = KEYS[1], KEYS[2], KEYS[3]
local done = redis.call('GET', latch)
if done then
    return tonumber(done)
end
if redis.call('HGET', lock, 'mode') ~= 'write' or redis.call('HEXISTS', lock, ARGV[3]) == 0 then
    return false
end
local left = redis.call('HINCRBY', lock, ARGV[3], -1)
if left > 0 then
    redis.call('PEXPIRE', lock, ARGV[2])
    redis.call('SET', latch, 0, 'PX', ARGV[4])
    return 0
end
redis.call('HDEL', lock, ARGV[3])
if redis.call('HLEN', lock) == 1 then
    redis.call('DEL', lock)
    redis.call('PUBLISH', channel, ARGV[1])
else
    redis.call('HSET', lock, 'mode', 'read')
end
redis.call('SET', latch, 1, 'PX', ARGV[4])
return 1
