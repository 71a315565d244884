-- The clock, and the tokens that follow it.

-- Sets `now` to the instant of the call, or to the last instant at which a script granted, queued
-- or dropped a session, if that is later: time never goes back for a resource.
local function read_clock(clock)
  if not now then
    now = tonumber(ARGV[1])
    if not now then
      local time = call('TIME')
      now = time[1] * 1000000 + time[2]
    end
  end
  if clock > now then
    now = clock
  end
end

-- The token after the last one of a resource.
local function next_token(token)
  return token < now and now or token + 1
end
