-- Takes a write lock with the commands of Redisson's script. KEYS: lock. ARGV: lease, holder.
local lock, lease, holder = KEYS[1], ARGV[1], ARGV[2]
local mode = redis.call('HGET', lock, 'mode')
if not mode then
    redis.call('HSET', lock, 'mode', 'write')
    redis.call('HSET', lock, holder, 1)
    redis.call('PEXPIRE', lock, lease)
    return false
end
if mode == 'write' and redis.call('HEXISTS', lock, holder) == 1 then
    redis.call('HINCRBY', lock, holder, 1)
    redis.call('PEXPIRE', lock, redis.call('PTTL', lock) + lease)
    return false
end
return redis.call('PTTL', lock)
