-- shrink: session | lower | upper | text
--
-- Gives up the parts outside a span of the held intervals of the first resource that contain it.

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
local shrunk, refusal = {}, { 'refused', 'outside', r.name, text }
for i = 1, #known[CLAIMS] do
  local claim = known[CLAIMS][i]
  if covers(claim[LO], claim[HI], lo, hi) then
    if COLUMN[claim[MODE]] == 4 then
      refusal = { 'refused', 'whole', r.name }
    else
      shrunk[#shrunk + 1] = claim
    end
  end
end
if #shrunk == 0 then
  return finish(refusal)
end
local function keeps(_, its_lo, its_hi)
  return covers(lo, hi, its_lo, its_hi)
end
for i = 1, #shrunk do
  if nested_waits(r, session, shrunk[i][LO], shrunk[i][HI], keeps) then
    return finish({ 'refused', 'nested', r.name })
  end
end
local freed = {}
local los, his = cuts(session, shrunk, true)
for i = 1, #shrunk do
  local claim = shrunk[i]
  freed[i] = { r, claim[LO], claim[HI], FREED[claim[MODE]] }
  claim[LO], claim[HI], claim[TEXT] = lo, hi, text
end
fill(r)
change('ZREM', r.l, los)
change('ZREM', r.u, his)
put(r, session, known)
los, his = cuts(session, shrunk, true, r.epoch)
change('ZADD', r.l, los)
change('ZADD', r.u, his)
settle(freed)
return finish({ 'done' })
