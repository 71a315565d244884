-- The clock, and the tokens that follow it.

-- Sets `now` to the instant of the call for a resource: that of the server, or the last instant at
-- which a script granted, queued or dropped a session of the resource, if that is later. So time
-- never goes back for a resource. No resource is judged by the clock of another one.
local function read_clock(clock)
  if not server_now then
    server_now = tonumber(ARGV[1])
    if not server_now then
      local time = call('TIME')
      server_now = time[1] * 1000000 + time[2]
    end
  end
  now = clock > server_now and clock or server_now
end

-- The token after the last one of a resource.
local function next_token(token)
  return token < now and now or token + 1
end
