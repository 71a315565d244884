-- extend: session | by
--
-- Lets a kept hold that `acquire` made last for `by` from now, or for as long as its request asked
-- if `by` is 0. The hold never ends sooner.

local session = ARGV[3]
local reply = begin_change(session)
if reply then
  return reply
end
local at = places(session)
local known = at[1].records[session]
if known[HELD] ~= KEPT or known[KEEP_FOR] == 0 then
  return finish({ 'refused', 'kept', at[1].name })
end
local by = tonumber(ARGV[4])
by = by > 0 and by or known[KEEP_FOR]
for i = 1, #at do
  call('ZADD', at[i].e, math.max(expiry_of(at[i], session), kept_until(at[i].now, by)), session)
end
return finish(stands(session))
