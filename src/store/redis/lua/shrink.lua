-- shrink: session | lower | upper | text
--
-- Gives up the part of a hold on the first resource that lies outside a span.

local session, lo, hi, text = ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local over = begin_change(session)
if over then
  return over
end
local r = resources[1]
local known = record(r, session)
if not known or known[HELD] == WAITS then
  return finish({ 'refused', 'none', r.name })
end
local claim
for i = 1, #known[CLAIMS] do
  local held = known[CLAIMS][i]
  if not claim and covers(held[LO], held[HI], lo, hi) then
    claim = held
  end
end
if not claim then
  return finish({ 'refused', 'outside', r.name, text })
end
if COLUMN[claim[MODE]] == 4 then
  return finish({ 'refused', 'whole', r.name })
end
local function keeps(_, its_lo, its_hi)
  return covers(lo, hi, its_lo, its_hi)
end
if nested_waits(r, session, claim[LO], claim[HI], keeps) then
  return finish({ 'refused', 'nested', r.name })
end
local freed = { { r, claim[LO], claim[HI], FREED[claim[MODE]] } }
local los, his = cuts(session, { claim }, true)
change('ZREM', r.l, los)
change('ZREM', r.u, his)
claim[LO], claim[HI], claim[TEXT] = lo, hi, text
put(r, session, known)
los, his = cuts(session, { claim }, true, r.epoch)
change('ZADD', r.l, los)
change('ZADD', r.u, his)
settle(freed)
return finish({ 'done' })
