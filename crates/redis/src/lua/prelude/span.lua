-- Spans. Cuts are compared byte by byte, as ZSETs compare them; `<` follows the server's locale.

-- Whether one cut lies before another. No cut is a prefix of another, so two cuts differ before
-- either ends.
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

-- Counts the claims of a class that overlap a span: all claims except those that begin after the
-- span and those that end before it. A member of l or u consists of class, cut, session and index.
-- No digit of a session is as high as \255.
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

-- Returns the session of a member of l or u.
local function owner(member)
  return sub(member, -36, -5)
end
