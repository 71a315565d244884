-- The messages that wake waiters.

-- Returns the number of subscribers to the channel itself, not counting patterns. Returns nil if
-- the user lacks the right to ask.
local may_count = true
local function subscribers(channel)
  local reply = may_count and redis.pcall('PUBSUB', publish == 'PUBLISH' and 'NUMSUB' or 'SHARDNUMSUB', channel)
  may_count = reply and not reply.err
  return may_count and reply[2] or nil
end

-- Tells a waiter of its grant. Returns whether a subscriber received the message. PUBLISH also
-- counts subscribers to patterns; SPUBLISH ignores patterns.
local function is_heard(channel)
  return not (publish == 'PUBLISH' and subscribers(channel) == 0) and call(publish, channel, 'granted') > 0
end
