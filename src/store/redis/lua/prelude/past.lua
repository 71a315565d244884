-- What a resource remembers of the holds that have ended.

local function read_past(past)
  return past == '' and { '', 0, '', 0, 0, 0, 0, 0, 0, 0, 0, 0 } or { unpacked(past) }
end

-- Writes the state of a resource that no session uses, and returns what `set` returns.
local function leave_alone(s, token, seq, past)
  local is_worth_more = past[JOBS] ~= '' or past[ENTERED] > past[FIRST] or past[SUCCEEDED] > 0
  return set(s, pack(FORMAT, now, token, seq, pack(unpack(past)), NOBODY), 'PX', is_worth_more and KEEP or IDLE)
end

-- Counts a hold that ends.
local function count_end(past, asked, since)
  past[ENDS], past[HELD_FOR], past[WAITED] = past[ENDS] + 1, past[HELD_FOR] + now - since, past[WAITED] + since - asked
end

-- Notes how a hold or its command ended.
local function note_outcome(past, outcome, success)
  past[OUTCOME], past[ENDED] = outcome, now
  past[LOST] = past[LOST] + (outcome == 'lost' and 1 or 0)
  past[EXPIRED] = past[EXPIRED] + (outcome == 'expired' and 1 or 0)
  past[SUCCEEDED] = success and now or past[SUCCEEDED]
end

-- Returns an entry of the history. `times` is the number of skips that an entry stands for.
local function entry_of(outcome, times, asked, since, token, claims, fixed)
  return pack(outcome, times, asked, since, now, token) .. claims .. fixed
end

-- Adds an entry to the history of a resource, or replaces the one at an index, after everything
-- that frees the lock. A history that can't be written is no reason to fail. The TTL is not set
-- with every entry.
local function remember(h, limit, ended, entry, index)
  if index then
    redis.pcall('LSET', h, index, entry)
  elseif not redis.pcall('LTRIM', h, limit > 1 and 0 or 1, limit > 1 and limit - 2 or 0).err then
    local size = redis.pcall('LPUSH', h, entry)
    if size == 1 or now - ended > IDLE * 1000 then
      redis.pcall('PEXPIRE', h, KEEP)
    end
  end
end
