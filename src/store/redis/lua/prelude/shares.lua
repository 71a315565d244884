-- The claims of a new request below the holds of its session's ancestors.

-- Makes shares of the slots that the request shares with its ancestors. Returns the reply if the
-- hold of an ancestor refuses a claim.
local function refused(claims, where, kin)
  local earlier = {}
  for i = 1, #claims do
    local r, claim = where[i], claims[i]
    local how, reply, slot = standing(r, claim, kin, earlier[r] or 0)
    earlier[r] = (earlier[r] or 0) + (COLUMN[claim[MODE]] == 4 and 1 or 0)
    if how == 'refused' then
      return reply
    end
    claim[MODE] = slot and 'h' or claim[MODE]
  end
end
