-- The state of a resource with a sole holder.

-- Returns s with a sole holder. `kept` is nil, unless the hold is kept: then it tells how the hold
-- before it ended.
local function held_alone(token, seq, past, session, since, ttl, expiry, fixed, claims, kept)
  return pack(FORMAT, now, token, seq, past, session, since, ttl, expiry, fixed, claims, kept)
end
