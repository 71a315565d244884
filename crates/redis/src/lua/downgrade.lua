-- downgrade: session | mode
--
-- Lowers the mode in which a session holds the first resource.

local session, mode = ARGV[3], ARGV[4]
local over = begin_change(session)
if over then
  return over
end
local r = resources[1]

-- For each lowering, the modes of the waiters that the claim blocks no longer.
local LOWER = { rr = '', pp = '', ww = '', pr = 'p', wr = 'rpsh', wp = 'rsh' }
local known = record(r, session)
local lowered, refusal = {}, { 'refused', 'none', r.name }
for i = 1, known and known[HELD] > WAITS and #known[CLAIMS] or 0 do
  local claim = known[CLAIMS][i]
  if LOWER[claim[MODE] .. mode] then
    lowered[#lowered + 1] = claim
  else
    refusal = { 'refused', 'below', r.name, plain(claim[MODE]), mode }
  end
end
if #lowered == 0 then
  return finish(refusal)
end
local function keeps(asked)
  return below(mode, asked) ~= 'x'
end
for i = 1, #lowered do
  if nested_waits(r, session, lowered[i][LO], lowered[i][HI], keeps) then
    return finish({ 'refused', 'nested', r.name })
  end
end
local freed = {}
local los, his = cuts(session, lowered, true)
for i = 1, #lowered do
  local claim = lowered[i]
  freed[i] = { r, claim[LO], claim[HI], LOWER[claim[MODE] .. mode] }
  count(r, capital(claim[MODE]), -1)
  count(r, capital(mode), 1)
  claim[MODE] = mode
end
fill(r)
change('ZREM', r.l, los)
change('ZREM', r.u, his)
put(r, session, known)
los, his = cuts(session, lowered, true, r.epoch)
change('ZADD', r.l, los)
change('ZADD', r.u, his)
settle(freed)
return finish({ 'done' })
