-- The claims of a new request below the holds of its session's ancestors.

-- Makes shares of the claims that take from the slots of an ancestor. Returns the reply if the hold
-- of an ancestor refuses a claim.
local function refused(claims, where, kin)
  local slots = {}
  for i = 1, #claims do
    slots[where[i]] = (slots[where[i]] or 0) + (COLUMN[claims[i][MODE]] == 4 and 1 or 0)
  end
  for i = 1, #claims do
    local how, reply, pool = standing(where[i], claims[i], kin, slots[where[i]])
    if how == 'refused' then
      return reply
    end
    claims[i][MODE] = pool and 'h' or claims[i][MODE]
  end
end
