-- The standing of a claim below the holds of its session's ancestors.

-- For each held mode, the fate of r, p, w and s below it: granted at once (=), waiting (w) or
-- refused (x).
local BELOW = FATES_BELOW
local COLUMN = { r = 1, p = 2, w = 3, s = 4, h = 4 }

local function below(held, asked)
  local column = COLUMN[asked]
  return sub(BELOW[held], column, column)
end

local function plain(mode)
  return mode == 'h' and 's' or mode
end

-- Returns the slots of which a nested claim takes, those of the nearest ancestor that holds any: the
-- ancestor, their count, the set of their numbers, and the lowest and the highest of these. If there
-- are several, each session that takes from the pool has numbers of its own. All share a single one.
local function pool_of(r, kin)
  for i = 2, #kin do
    local known, pool = record(r, kin[i]), { holder = kin[i], count = 0, numbers = {} }
    for j = 1, known and known[HELD] > WAITS and #known[CLAIMS] or 0 do
      local number = known[CLAIMS][j][SLOT]
      if number then
        pool.count, pool.numbers[number] = pool.count + 1, true
        pool.low, pool.high = math.min(pool.low or number, number), math.max(pool.high or number, number)
      end
    end
    if pool.count > 0 then
      return pool
    end
  end
end

-- Returns the numbers of a pool that other sessions have, without the ancestors of the one that
-- asks, and how many they are. The search ends at `enough` of them.
local function taken_of(r, pool, kin, enough)
  local taken, k = {}, 0
  local from, past = '[H\0' .. format('%08x', pool.low), '(H\0' .. format('%08x', pool.high) .. '\255'
  while r.count.H and k < enough do
    local members = call('ZRANGE', r.l, from, past, 'BYLEX', 'LIMIT', 0, BATCH)
    work = work - LOOK * #members
    for i = 1, #members do
      local number = tonumber(sub(members[i], 3, 10), 16)
      if pool.numbers[number] and not taken[number] and not kin[owner(members[i])] then
        taken[number], k = true, k + 1
      end
    end
    if #members < BATCH then
      break
    end
    from = '(' .. members[#members]
  end
  return taken, k
end

-- Returns 'ordinary'; or 'included', the token of the hold that includes the claim, and the pool of
-- which the claim takes, if it is one of slots below others; or 'growing'; or 'refused' and the
-- reply. If several holds conflict, the reply names the outermost. The request asks for so many
-- `slots` of the resource.
local function standing(r, claim, kin, slots)
  local lo, hi, mode = claim[LO], claim[HI], claim[MODE]
  local pool = COLUMN[mode] == 4 and pool_of(r, kin) or nil
  local grows, slot, refusal
  if pool and slots > pool.count then
    return 'refused', { 'refused', 'slots', r.name, pool.count }
  end
  for i = 2, #kin do
    local known = record(r, kin[i])
    for j = 1, known and known[HELD] > WAITS and #known[CLAIMS] or 0 do
      local held = known[CLAIMS][j]
      if overlaps(held[LO], held[HI], lo, hi) then
        local verdict = below(held[MODE], mode)
        local covered = covers(held[LO], held[HI], lo, hi)
        if verdict == '=' and covered then
          -- The claim takes from the slots above even if a nearer hold includes it.
          return 'included', held[TOKEN], pool
        elseif verdict == 'w' and covered then
          grows = true
        elseif verdict == 'x' then
          refusal = { 'refused', 'grow', r.name, plain(held[MODE]), plain(mode) }
          -- Another session may wait for that slot and block this claim, whatever other hold allows
          -- the claim.
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
