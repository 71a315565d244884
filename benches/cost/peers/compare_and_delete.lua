-- Releases what SET NX PX took, if it is still there. KEYS: lock. ARGV: holder.
if redis.call('GET', KEYS[1]) == ARGV[1] then
    return redis.call('DEL', KEYS[1])
end
return 0
