-- Takes a read lock with the commands of Redisson's script.
-- KEYS: lock, prefix of the holder's timeouts. ARGV: lease, holder.
local lock, timeouts = KEYS[1], KEYS[2]
local lease, holder = ARGV[1], ARGV[2]
local mode = redis.call('HGET', lock, 'mode')
if mode == 'write' then
    return redis.call('PTTL', lock)
end
local times = 1
if mode then
    times = redis.call('HINCRBY', lock, holder, 1)
else
    redis.call('HSET', lock, 'mode', 'read')
    redis.call('HSET', lock, holder, 1)
end
redis.call('SET', timeouts .. ':' .. times, 1)
redis.call('PEXPIRE', timeouts .. ':' .. times, lease)
if mode then
    lease = math.max(redis.call('PTTL', lock), lease)
end
redis.call('PEXPIRE', lock, lease)
return false
