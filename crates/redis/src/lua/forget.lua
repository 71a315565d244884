-- forget
--
-- Removes what the first resource remembers, unless a session uses it.

begin()
look_for_expired()
if damaged then
  return repair()
end
local need = needed({}, false)
if need then
  return need
end
local more = catch_up_beside(false)
if more then
  return finish(more)
end
local reply = finish({ 'done' })
local r = resources[1]
if not r.holder and not r.epoch then
  now = r.now
  leave_alone(r.s, r.token, r.seq, read_past(string.rep('\0', PAST_LENGTH)))
  call('PEXPIRE', r.h, 0)
  -- The next token follows the clock, so nothing else is left to know.
  if r.token < server_now then
    call('PEXPIRE', r.s, 0)
  end
end
return reply
