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

-- Returns 'ordinary'; or 'included', the token of the hold that includes the claim, and the number
-- of the slot if the claim is a share of one; or 'growing'; or 'refused' and the reply. If several
-- holds conflict, the reply names the outermost. `earlier` claims of slots of the same request come
-- before the claim, so it shares the slot of that number that an ancestor has.
local function standing(r, claim, kin, earlier)
  local lo, hi, mode = claim[LO], claim[HI], claim[MODE]
  local token, grows, slot, refusal, too_few
  for i = 2, #kin do
    local known, shared = record(r, kin[i]), 0
    for j = 1, known and known[HELD] > WAITS and #known[CLAIMS] or 0 do
      local held = known[CLAIMS][j]
      if overlaps(held[LO], held[HI], lo, hi) then
        local verdict = below(held[MODE], mode)
        local covered = covers(held[LO], held[HI], lo, hi)
        if COLUMN[mode] == 4 and held[SLOT] then
          -- A slot above is shared even if a nearer hold includes the claim.
          if shared == earlier then
            return 'included', token or held[TOKEN], held[SLOT]
          end
          shared = shared + 1
          too_few = { 'refused', 'slots', r.name, shared }
        elseif verdict == '=' and covered then
          token = token or held[TOKEN]
          if COLUMN[mode] ~= 4 then
            return 'included', token
          end
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
  if too_few then
    return 'refused', too_few
  elseif token then
    return 'included', token
  elseif slot then
    return 'refused', slot
  elseif grows then
    return 'growing'
  elseif refusal then
    return 'refused', refusal
  end
  return 'ordinary'
end
