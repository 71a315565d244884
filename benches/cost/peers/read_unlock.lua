-- Releases a read lock with the commands of Redisson's script.
-- KEYS: lock, channel, prefix of the holder's timeouts, prefix of all timeouts, latch.
-- ARGV: message, holder, lifetime of the latch.
local lock, channel, own, all, latch = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local done = redis.call('GET', latch)
if done then
    return tonumber(done)
end
local mode = redis.call('HGET', lock, 'mode')
if mode then
    if redis.call('HEXISTS', lock, ARGV[2]) == 0 then
        return false
    end
    local left = redis.call('HINCRBY', lock, ARGV[2], -1)
    if left == 0 then
        redis.call('HDEL', lock, ARGV[2])
    end
    redis.call('DEL', own .. ':' .. left + 1)
    if redis.call('HLEN', lock) > 1 then
        local longest = -3
        for _, holder in ipairs(redis.call('HKEYS', lock)) do
            for time = tonumber(redis.call('HGET', lock, holder)) or 0, 1, -1 do
                longest = math.max(longest, redis.call('PTTL', all .. ':' .. holder .. ':rwlock_timeout:' .. time))
            end
        end
        if longest > 0 then
            redis.call('PEXPIRE', lock, longest)
        end
        redis.call('SET', latch, 0, 'PX', ARGV[3])
        return 0
    end
    redis.call('DEL', lock)
end
redis.call('PUBLISH', channel, ARGV[1])
redis.call('SET', latch, 1, 'PX', ARGV[3])
return 1
