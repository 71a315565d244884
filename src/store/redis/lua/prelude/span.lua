-- Spans: cuts are compared byte by byte, as ZSETs do and `<` doesn't, which follows the server's locale.

-- Whether one cut lies before another. No cut begins another, so they differ before either ends.
local function before(a, b)
  if a == b then
    return false
  end
  local i = 1
  while sub(a, i, i + 63) == sub(b, i, i + 63) do
    i = i + 64
  end
  while true do
    local x, y = byte(a, i), byte(b, i)
    if x ~= y then
      return (x or -1) < (y or -1)
    end
    i = i + 1
  end
end

local function overlaps(lo, hi, other_lo, other_hi)
  return before(lo, other_hi) and before(other_lo, hi)
end

local function covers(lo, hi, inner_lo, inner_hi)
  return not before(inner_lo, lo) and not before(hi, inner_hi)
end

-- How many claims of a class overlap a span: all but those that begin beyond it and those that end before it.
-- A member of l or u is class, cut, session and index; no session's digit is as high as \255.
local function overlapping(r, class, lo, hi)
  local k = r.count[class] or 0
  if k > 0 and hi ~= '\255' then
    k = k - call('ZLEXCOUNT', r.l, '[' .. class .. hi, '(' .. char(byte(class) + 1))
  end
  if k > 0 and lo ~= '\0' then
    k = k - call('ZLEXCOUNT', r.u, '[' .. class, '(' .. class .. lo .. '\255')
  end
  return k
end

-- The members of l and u for the claims of a session, each list to follow ZADD or ZREM.
local function cuts(id, claims, held, score)
  local los, his = {}, {}
  for i = 1, #claims do
    local claim = claims[i]
    local class = held and capital(claim[MODE]) or claim[MODE]
    local tail = id .. format('%04x', claim[INDEX])
    if score then
      los[#los + 1], his[#his + 1] = score, score
    end
    los[#los + 1], his[#his + 1] = class .. claim[LO] .. tail, class .. claim[HI] .. tail
  end
  return los, his
end

-- Changes a set by a list that may be longer than what Lua can hand over at once.
local function change(command, set, list)
  for i = 1, #list, 4000 do
    call(command, set, unpack(list, i, i + 3999 < #list and i + 3999 or #list))
  end
end

-- The session of a member of l or u.
local function owner(member)
  return sub(member, -36, -5)
end
