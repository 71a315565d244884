-- The state of a resource with a sole holder.

-- Returns s with a sole holder.
local function held_alone(token, seq, past, session, since, ttl, fixed, claim)
  return pack(FORMAT, now, token, seq, past, session, since, ttl, ttl > 0 and now + ttl or 0, fixed, claim)
end
