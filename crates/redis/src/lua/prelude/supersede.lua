-- The rivals of a request: the waiters of the same job, which it supersedes.

-- Returns the rivals of a request, the resource of each in `where`, and in `leaving` how many of
-- their claims wait for each of the resources. Looks at the first `unseen` waiting claims of the
-- resources. If more rivals leave than one call ends, there are `more`, and the client repeats the
-- call; `all` has these, too.
local function rivals_of(at, own, kin, unseen)
  local rivals, room = { where = {}, leaving = {}, all = {} }, LOAD
  for i = 1, #at do
    local r, k = at[i], 1
    local entry = unseen > 0 and r.count.waiters and waiter(r, k)
    rivals.leaving[i] = 0
    while entry and unseen > 0 do
      local id = entry.id
      local known = not r.left[id] and not kin[id] and record(r, id)
      if known and known[JOB] == own[JOB] then
        rivals.leaving[i], rivals.all[#rivals.all + 1] = rivals.leaving[i] + 1, not rivals.all[id] and id or nil
        rivals.all[id] = true
        local cost = not rivals.where[id] and load_of(id, r)
        if cost and (#rivals == CROWD or #rivals > 0 and cost > room) then
          rivals.more = true
        elseif cost then
          rivals[#rivals + 1], rivals.where[id], room = id, r, room - cost
        end
      end
      unseen, k = unseen - #entry / 3, k + 1
      entry = waiter(r, k)
    end
  end
  return rivals
end

-- Returns the sessions that do not block a request: its kin, and its rivals while they still wait.
local function passed_over(kin, rivals)
  local passed = { rivals = rivals.all }
  for key, value in pairs(kin) do
    passed[key] = value
  end
  for i = 1, #rivals.all do
    passed[rivals.all[i]] = true
  end
  return passed
end

-- Ends the rivals, which find out when they ask again. Returns the reply if the call has to be
-- repeated.
local function supersede(rivals, freed)
  for i = 1, #rivals do
    local id = rivals[i]
    local known = record(rivals.where[id], id)
    if known[LISTENING] == 1 and publish ~= '' then
      is_heard(known[CHANNEL])
    end
    leave({ id }, rivals.where[id], freed)
  end
  if rivals.more then
    settle(freed)
    return finish({ 'need' })
  end
end
