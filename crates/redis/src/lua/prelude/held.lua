-- The changes of what a session holds.

-- Whether a descendant's claim waits within a span and relies on the hold above it, so that `keeps`
-- rejects the claim.
local function nested_waits(r, id, lo, hi, keeps)
  local at = 1
  while r.count.nested do
    local entry = waiter(r, at)
    if not entry then
      break
    end
    for i = 1, entry.is_nested and not r.left[entry.id] and #entry or 0, 3 do
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

-- Begins to change what a session holds of the first resource. Returns a reply if the operation
-- ends here already.
local function begin_change(session)
  begin(session)
  look_for_expired()
  if damaged then
    return repair()
  end
  local at, lost = places(session)
  local known = #at > 0
  -- The session's next renewal drops the remaining claims.
  if lost then
    return { 'unknown' }
  end
  local need = needed({}, known)
  if need then
    return need
  end
  if known or is_behind() then
    make_way()
    check()
    spread_all()
  end
  local more = catch_up() or #places(session) == 0 and { 'unknown' }
  return more and finish(more)
end
