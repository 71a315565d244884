-- history: maximum number of entries of each resource
--
-- Lists what the resources remember. Changes nothing.

local limit = tonumber(argument(1))
local reply = { 'history' }
for i = 1, n do
  local raw = call('GET', KEYS[7 * i - 6])
  if raw then
    check_format(raw)
    local _, _, _, _, past = unpacked(raw)
    past = read_past(past)
    local jobs, entries = {}, {}
    for name, job in pairs(past[JOBS] ~= '' and unpacked(past[JOBS]) or {}) do
      jobs[#jobs + 1] = { name, unpack(job) }
    end
    past[JOBS] = jobs
    local list = limit > 0 and call('LRANGE', KEYS[7 * i], 0, limit - 1) or {}
    for j = 1, #list do
      -- An h without an entry has an empty one.
      if list[j] ~= '' then
        entries[#entries + 1] = { unpacked(list[j]) }
      end
    end
    reply[#reply + 1] = { ARGV[3 + i], past, entries }
  end
end
return reply
