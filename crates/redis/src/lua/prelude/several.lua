-- The sole holder of several resources.

-- Returns the states of the declared resources, in their order, if a session is the sole holder of
-- each, holds no other resource, and has no lease that is over. Otherwise returns nil.
local states_of_all = n > 1 and function(session)
  local at = {}
  for i = 1, n do
    local s = KEYS[7 * i - 6]
    local raw = call('GET', s)
    if not raw or string.sub(raw, 1, FIELDS - 1) ~= SOLE then
      return nil
    end
    local clock, expiry, token, seq, past, since, ttl, holder, more, rest = struct.unpack(STATE_OF_SOLE, raw, FIELDS)
    local kept, names
    if more ~= '' then
      kept, names = unpacked(more)
    end
    if holder ~= session or not names or i == 1 and #names ~= n then
      return nil
    end
    read_clock(clock)
    local request = string.sub(raw, rest)
    local _, claims = cmsgpack.unpack_one(request)
    at[i] = {
      s = s, h = KEYS[7 * i], raw = raw, token = token, seq = seq, past = past, since = since, ttl = ttl, expiry = expiry,
      kept = kept, index = claims[1][INDEX], request = request, now = now,
    }
  end
  for i = 1, n do
    if at[i].expiry > 0 and at[i].expiry <= at[i].now then
      return nil
    end
  end
  return at
end
