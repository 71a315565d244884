-- The state of a resource with a sole holder.

-- Returns s with a sole holder. `kept` is nil, unless the hold is kept: then it tells how the hold
-- before it ended. `names` is nil, unless the session holds other resources too: then it has the
-- names that a record would have, and `last` tells how the last hold of the first one had ended.
local function held_alone(token, seq, past, session, since, ttl, expiry, fixed, claims, kept, names, last)
  if names then
    return pack(FORMAT, now, token, seq, past, session .. SEVERAL, since, ttl, expiry, fixed, claims, kept, names, last)
  end
  return pack(FORMAT, now, token, seq, past, session, since, ttl, expiry, fixed, claims, kept)
end
