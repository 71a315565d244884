-- How a claim stands to what the ancestors of its session hold.

-- By the mode held, what becomes of r, p, w, s below it: granted at once, waits, refused.
local BELOW = { r = '=xxw', p = '==ww', w = '====', s = '=xx=', h = '=xx=' }
local COLUMN = { r = 1, p = 2, w = 3, s = 4, h = 4 }

local function below(held, asked)
  local column = COLUMN[asked]
  return sub(BELOW[held], column, column)
end

local function plain(mode)
  return mode == 'h' and 's' or mode
end

-- 'ordinary'; 'included' with the token of the hold that includes it, and whether it is a share of a slot; 'growing'; or 'refused'
-- with the reply. Of several holds in the way the outermost is named.
local function standing(r, claim, kin)
  local lo, hi, mode = claim[LO], claim[HI], claim[MODE]
  local grows, slot, refusal
  for i = 2, #kin do
    local known = record(r, kin[i])
    for j = 1, known and known[HELD] == 1 and #known[CLAIMS] or 0 do
      local held = known[CLAIMS][j]
      if overlaps(held[LO], held[HI], lo, hi) then
        local verdict = below(held[MODE], mode)
        local covered = covers(held[LO], held[HI], lo, hi)
        if verdict == '=' and covered then
          return 'included', held[TOKEN], COLUMN[mode] == 4 and COLUMN[held[MODE]] == 4
        elseif verdict == 'w' and covered then
          grows = true
        elseif verdict == 'x' then
          refusal = { 'refused', 'grow', r.name, plain(held[MODE]), plain(mode) }
          -- Somebody may wait for that slot on whom this claim would wait, whatever other hold allows it.
          slot = COLUMN[held[MODE]] == 4 and refusal or slot
        elseif not refusal or refusal[2] == 'past' then
          refusal = { 'refused', 'past', r.name, held[TEXT], claim[TEXT] }
        end
      end
    end
  end
  if slot then
    return 'refused', slot
  elseif grows then
    return 'growing'
  elseif refusal then
    return 'refused', refusal
  end
  return 'ordinary'
end

-- Whether a descendant's nested claim waits within a span that `keeps` does not answer for: it relies on the hold above it.
local function nested_waits(r, id, lo, hi, keeps)
  local at = 1
  while r.count.nested do
    local entry = waiter(r, at)
    if not entry or entry.score > 0 then
      break
    end
    for i = 1, r.left[entry.id] and 0 or #entry, 3 do
      if overlaps(entry[i + 1], entry[i + 2], lo, hi) and not keeps(entry[i], entry[i + 1], entry[i + 2]) then
        local known = record(r, entry.id)
        if known and kin_of(entry.id, known[ANCESTORS])[id] then
          return true
        end
      end
    end
    at = at + 1
  end
  return false
end
