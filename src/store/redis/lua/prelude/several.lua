-- The sole holder of several resources.

-- Returns the states of the declared resources, in their order, if a session is the sole holder of
-- each, holds no other resource, and has no lease that is over. Otherwise returns nil.
local states_of_all = n > 1 and function(session)
  local at = {}
  for i = 1, n do
    local s = KEYS[7 * i - 6]
    local raw = call('GET', s)
    if not raw then
      return nil
    end
    check_format(raw)
    local _, clock, token, seq, past, holder, since, ttl, expiry, fixed, claims, kept, names, last = unpacked(raw)
    if holder ~= session .. SEVERAL or i == 1 and #names ~= n then
      return nil
    end
    read_clock(clock)
    at[i] = {
      s = s, h = KEYS[7 * i], token = token, seq = seq, past = past, since = since, ttl = ttl, expiry = expiry, fixed = fixed,
      claims = claims, kept = kept, names = names, last = last,
    }
  end
  for i = 1, n do
    if at[i].expiry > 0 and at[i].expiry <= now then
      return nil
    end
  end
  return at
end
