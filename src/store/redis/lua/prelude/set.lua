-- Writes of s that work on a server at maxmemory.

-- Sets a string even if the server is at maxmemory: after a write that takes no memory, the server
-- accepts all other writes of the script. Returns whether the server has memory left.
local function set(...)
  local reply = redis.pcall('SET', ...)
  if not reply.err then
    return true
  end
  call('PERSIST', (...))
  call('SET', ...)
end
