-- history: maximum number of entries of each resource | how many names, jobs and entries the reply
-- may have | where the first resource goes on, or 0
--
-- Lists what the resources remember. Changes nothing.

local limit, left, from = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
-- The number of entries that are read at once, and what a claim of an entry costs.
local AT_ONCE, CLAIM = 16, 0.1
-- The reply has the number of resources that are complete, and where the next one goes on.
local reply = { 'history', 0, 0 }
for i = 1, n do
  if left <= 0 or reply[3] > 0 then
    break
  end
  left = left - 1
  local raw = call('GET', KEYS[7 * i - 6])
  if raw then
    local r = { records = {} }
    read_state(r, raw)
    local past = read_past(r.past)
    local counters, jobs, entries = counters_of(past), {}, {}
    for name, job in pairs(past[JOBS] ~= '' and unpacked(past[JOBS]) or {}) do
      jobs[#jobs + 1] = { name, unpack(job) }
    end
    local remembered = {
      past[OUTCOME], jobs, past[ENDED], past[ENTERED], past[SUCCEEDED], past[ENDS], past[HELD_FOR], counters[WAITED],
      counters[BUSY], counters[LOST], counters[EXPIRED], past[BOUND],
    }
    reply[#reply + 1] = { ARGV[5 + i], remembered, entries }
    left = left - #jobs
    -- New entries come first, so a part begins at the number of an entry and not at its index.
    local at = i == 1 and from > 0 and past[ENTERED] - from or 0
    local list
    repeat
      list = at < limit and call('LRANGE', KEYS[7 * i], at, math.min(at + AT_ONCE, limit) - 1) or {}
      for j = 1, #list do
        -- An h without an entry has an empty one.
        if list[j] ~= '' then
          local entry = { struct.unpack(ENTRY_HEAD, list[j]) }
          local claims, fixed, is_nested = unpacked(sub(list[j], entry[#entry]))
          entry[#entry], entry[#entry + 1], entry[#entry + 2] = claims, fixed, is_nested
          entries[#entries + 1] = entry
          left = left - CLAIM * #claims
        end
        at, left = at + 1, left - 1
        if left <= 0 then
          reply[3] = (j < #list or #list == AT_ONCE) and at < limit and math.max(past[ENTERED] - at, 0) or 0
          break
        end
      end
    until left <= 0 or #list < AT_ONCE
  end
  reply[2] = reply[3] > 0 and i - 1 or i
end
return reply
