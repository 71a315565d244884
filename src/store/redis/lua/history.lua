-- history: maximum number of entries of each resource
--
-- Lists what the resources remember. Changes nothing.

local limit = tonumber(ARGV[3])
local reply = { 'history' }
for i = 1, n do
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
      counters[BUSY], counters[LOST], counters[EXPIRED],
    }
    local list = limit > 0 and call('LRANGE', KEYS[7 * i], 0, limit - 1) or {}
    for j = 1, #list do
      -- An h without an entry has an empty one.
      if list[j] ~= '' then
        local entry = { struct.unpack(ENTRY_HEAD, list[j]) }
        entry[#entry], entry[#entry + 1] = unpacked(sub(list[j], entry[#entry]))
        entries[#entries + 1] = entry
      end
    end
    reply[#reply + 1] = { ARGV[3 + i], remembered, entries }
  end
end
return reply
