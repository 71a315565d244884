-- What a resource remembers of the holds that have ended.

-- Returns how the last hold ended, and the packed jobs, from the past of a resource.
local function last_outcome(past)
  return struct.unpack(OUTCOME_AND_JOBS, past)
end

local function read_past(past)
  return { struct.unpack(PAST, past) }
end

local function packed_past(past)
  return struct.pack(
    PAST, #past[OUTCOME], past[OUTCOME], #past[JOBS], past[JOBS], past[ENDED], past[ENTERED], past[FIRST], past[SUCCEEDED],
    past[ENDS], past[HELD_FOR], past[BOUND], #past[COUNTS], past[COUNTS])
end

-- Writes the state of a resource that no session uses, even if the server is at maxmemory: after a
-- write that takes no memory, it accepts all other writes of the script.
local function leave_alone(s, token, seq, past)
  local px = (past[JOBS] ~= '' or past[ENTERED] > past[FIRST] or past[SUCCEEDED] > 0) and KEEP_MS or IDLE_MS
  px = past[BOUND] > now + KEEP and string.format('%.0f', math.ceil((past[BOUND] - now) / 1000)) or px
  local state = packed_past(past)
  state = NOBODY .. struct.pack(STATE_OF_NOBODY, now, token, seq) .. state
  is_full = redis.pcall('SET', s, state, 'PX', px).err
  if is_full then
    call('PERSIST', s)
    call('SET', s, state, 'PX', px)
  end
end

-- Counts a hold that ends.
local function count_end(past, since)
  past[ENDS], past[HELD_FOR] = past[ENDS] + 1, past[HELD_FOR] + now - since
end

-- Returns the counters of a past that are mostly 0.
local function counters_of(past)
  return past[COUNTS] == '' and { 0, 0, 0, 0 } or { struct.unpack(COUNTERS, past[COUNTS]) }
end

-- Adds to a counter of a past that is mostly 0.
local function add_to(past, counter, by)
  if by > 0 then
    local counters = counters_of(past)
    counters[counter] = counters[counter] + by
    past[COUNTS] = struct.pack(COUNTERS, unpack(counters, 1, 4)) .. string.sub(past[COUNTS], AFTER_COUNTERS)
  end
end

-- Notes how a hold or its command ended.
local function note_outcome(past, outcome, success)
  past[OUTCOME], past[ENDED] = outcome, now
  past[SUCCEEDED] = success and now or past[SUCCEEDED]
end

-- Returns an entry of the history. `times` is the number of requests that an entry stands for, and
-- `request` has the packed claims, and then the part of the record that never changes.
local function entry_of(outcome, times, asked, since, token, request)
  return struct.pack(ENTRY_HEAD, #outcome, outcome, times, asked, since, now, token) .. request
end

-- Adds an entry to the history of a resource, after everything that frees the lock. A history that
-- can't be written is no reason to fail. The first entry in an hour sets the TTL. So does the first
-- of all: the history may have had an empty entry, which lives for an hour. A history that is kept
-- for longer, until `bound`, gets its TTL with each entry.
local function remember(h, limit, ended, entry, bound)
  -- Servers take longer for a number than for a text. A migrating slot would not find the key again
  -- if it became empty in between.
  local last = limit > 1 and string.format('%d', limit - 2) or '0'
  if not redis.pcall('LTRIM', h, '0', last).err then
    local size = redis.pcall('LPUSH', h, entry)
    if limit == 1 then
      redis.pcall('LTRIM', h, '0', '0')
    end
    if bound > now + KEEP then
      redis.pcall('PEXPIRE', h, string.format('%.0f', math.ceil((bound - now) / 1000)))
    elseif size == 1 or size == 2 or ended < now - now % IDLE then
      redis.pcall('PEXPIRE', h, KEEP_MS)
    end
  end
end
