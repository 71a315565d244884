-- What a resource keeps of the holds that have ended.

-- The time in ms for which the state of an unused resource is kept. Tokens follow the clock, so
-- nothing needs it for longer.
local IDLE = 3600000

-- The time in ms for which the history of an unused resource is kept, and its state with it.
local KEEP = 604800000

-- Writes the state of a resource that no session uses, and returns what `set` returns.
local function leave_alone(s, token, seq, past, keep)
  return set(s, pack(FORMAT, now, token, seq, past, NOBODY), 'PX', keep and KEEP or IDLE)
end

-- Returns the past of a resource after a hold has ended, and the instant at which the hold before
-- it ended.
local function past_with(past, outcome, success, asked, since)
  local ended, _, succeeded, holds, held, waited, busy, lost, expired, jobs = unpacked(past)
  return pack(now, outcome, success and now or succeeded or 0, (holds or 0) + 1, (held or 0) + now - since,
    (waited or 0) + since - asked, busy or 0, (lost or 0) + (outcome == 'lost' and 1 or 0),
    (expired or 0) + (outcome == 'expired' and 1 or 0), jobs or ''), ended or 0
end

-- Adds a hold that has ended to the history of a resource, after everything that frees the lock. A
-- history that can't be written is no reason to fail. The TTL is not set with every entry.
local function remember(h, limit, ended, outcome, asked, since, token, claims, fixed)
  local last = limit > 1 and limit - 2 or 0
  if not redis.pcall('LTRIM', h, limit > 1 and 0 or 1, last).err then
    local size = redis.pcall('LPUSH', h, pack(outcome, 1, asked, since, now, token) .. claims .. fixed)
    if size == 1 or now - ended > IDLE * 1000 then
      redis.pcall('PEXPIRE', h, KEEP)
    end
  end
end
