-- What a resource remembers of jobs, and the changes of its past.

local function past_of(r)
  r.parsed_past = r.parsed_past or read_past(r.past)
  return r.parsed_past
end

-- Returns the past of a resource, which the caller changes.
local function changed_past(r)
  r.is_changed, r.has_new_past = true, true
  return past_of(r)
end

local function jobs_of(r)
  local jobs = past_of(r)[JOBS]
  return jobs ~= '' and unpacked(jobs) or {}
end

-- Whether the success of a job must not be forgotten yet.
local function is_bound(r, job)
  return r.now < job[SUCCESS] + job[PERIOD]
end

-- Keeps the jobs that are worth remembering. A change adds one job at most, and then the oldest of
-- too many goes whose success may be forgotten.
local function keep_jobs(r, jobs)
  local past, known, oldest, its_last = changed_past(r), 0, nil, nil
  for _, job in pairs(jobs) do
    past[BOUND] = math.max(past[BOUND], job[SUCCESS] + job[PERIOD])
  end
  for name, job in pairs(jobs) do
    local last = math.max(job[SUCCESS], job[LAST_END], job[COUNT] > 0 and job[LAST_SKIP] or 0, job[SUPERSEDED_AT])
    local is_kept = is_bound(r, job) or job[LAST_END] > 0 and r.now < past[BOUND]
    if last + KEEP <= r.now and not is_kept then
      jobs[name] = nil
    else
      known = known + 1
      if not is_bound(r, job) and (not oldest or last < its_last or last == its_last and before(name, oldest)) then
        oldest, its_last = name, last
      end
    end
  end
  if known > JOBS_MAX and oldest then
    jobs[oldest] = nil
  end
  past[JOBS] = next(jobs) and pack(jobs) or ''
end

local function no_job()
  return { 0, 0, 0, 0, -1, '', 0, 0, 0, 0, -1, 0, 0, '' }
end

-- Ends the streak of a session's job.
local function end_streak(r, known)
  if past_of(r)[JOBS] ~= '' then
    local jobs = jobs_of(r)
    local job = jobs[known[JOB]]
    if job and job[COUNT] > 0 then
      job[COUNT] = 0
      keep_jobs(r, jobs)
    end
  end
end

-- The instant that counts for a run of a session that begins at `at`: a clock that is a little
-- ahead of the server's calls cron a little early.
local function counted(known, at)
  local start = known[CALENDAR][1]
  return start and at < start and start - at <= AHEAD_MAX and start or at
end

-- For how long a success counts that a session asks for.
local function period_of(known)
  return known[ONCE_PER] < EVER and math.min(known[ONCE_PER], PERIOD_MAX) or EVER
end

-- Whether a success counts for a session. The periods that follow or precede the two that the
-- session knows count as long as the first.
local function is_recent(r, known, began)
  local start, next_start = known[CALENDAR][1], known[CALENDAR][2]
  if not start then
    return r.now < began + period_of(known)
  end
  local at = counted(known, r.now)
  return began >= at - (at - start) % math.max(next_start - start, 1)
end

-- Returns the job whose success is so late that a session need not be granted its request, or nil.
-- Ends the streak of the session's job in that case, and keeps the success for as long as the
-- session asks.
local function done_by(r, known)
  if known[ONCE_PER] == 0 or past_of(r)[JOBS] == '' then
    return nil
  end
  local jobs, period, last, by = jobs_of(r), period_of(known), nil, nil
  for name, job in pairs(jobs) do
    local is_later = not last or job[SUCCESS] > last[SUCCESS] or job[SUCCESS] == last[SUCCESS] and before(by, name)
    if is_later and (known[IS_NAMED] == 0 or name == known[JOB]) then
      last, by = job, name
    end
  end
  if not last or last[SUCCESS] == 0 or not is_recent(r, known, last[SUCCESS]) then
    return nil
  end
  if last[PERIOD] < period then
    last[PERIOD] = period
    keep_jobs(r, jobs)
  end
  end_streak(r, known)
  return by
end

-- Whether the success of the run for which a session asks could not be kept.
local function is_without_place(r, known)
  if known[ONCE_PER] == 0 or past_of(r)[JOBS] == '' then
    return false
  end
  local jobs, bound = jobs_of(r), 0
  for _, job in pairs(jobs) do
    bound = bound + (is_bound(r, job) and 1 or 0)
  end
  return bound >= JOBS_MAX and not jobs[known[JOB]]
end

-- Notes that a run of a session's job has succeeded.
local function note_success(r, known)
  local jobs = jobs_of(r)
  local job = jobs[known[JOB]] or no_job()
  jobs[known[JOB]] = job
  job[LAST_END] = known[IS_NAMED] == 1 and now or job[LAST_END]
  if known[ONCE_PER] > 0 then
    job[SUCCESS], job[PERIOD] = counted(known, known[SINCE]), period_of(known)
    job[SPARED], job[FIRST_SPARED], job[SPARED_ENTRY] = 0, 0, -1
  end
  keep_jobs(r, jobs)
end

-- Returns the end of an entry: the part of the record that never changes, and `true` if the session
-- is below a hold of the same resource.
local function origin(r, known)
  for i = 1, #known[ANCESTORS], 32 do
    local above = record(r, sub(known[ANCESTORS], i, i + 31))
    if above and above[HELD] > WAITS then
      return known[FIXED] .. pack(true)
    end
  end
  return known[FIXED]
end

-- Adds an entry to the history when the operation is finished. Returns the number of the entry.
local function enter(r, limit, entry, index)
  r.entries, r.keeps = r.entries or {}, math.max(r.keeps or 1, limit)
  r.entries[#r.entries + 1] = { r.h, limit, past_of(r)[ENDED], entry, index }
  local past = changed_past(r)
  if not index then
    past[ENTERED] = past[ENTERED] + 1
  end
  return past[ENTERED] - 1
end

-- Forgets the history, for a session that keeps none.
local function forget(r)
  local past = past_of(r)
  if past[ENTERED] > past[FIRST] then
    changed_past(r)[FIRST] = past[ENTERED]
    r.entries, r.forgets = nil, true
  end
end

-- Returns the entry of the history that has a number, and the index that it has after the entries
-- of this call. The entry is a false value if it is gone by then.
local function entry_at(r, number)
  local past, pending = past_of(r), r.entries or {}
  -- The entries before this one may have been trimmed, or those after it refused.
  local index = number >= past[FIRST] and past[ENTERED] - 1 - number
  local old = index and redis.pcall('LINDEX', r.h, index - #pending)
  for i = 1, index and #pending or 0 do
    old = index - #pending + i < pending[i][2] and old
  end
  return type(old) == 'string' and old, index
end

-- Enters requests of a job that were not granted in place of their earlier entry with this number,
-- or anew if it is gone. Returns the number of the entry.
local function enter_again(r, limit, entry, number)
  local outcome, old, index = 1 + string.byte(entry), entry_at(r, number)
  if old and sub(old, 1, outcome) == sub(entry, 1, outcome) then
    enter(r, limit, entry, index)
    return number
  elseif limit == 0 then
    forget(r)
    return -1
  end
  return enter(r, limit, entry)
end

-- Returns the numbers of the entries about waits, and what a later version has added behind them.
local function waits_of(past)
  local rest, waits = sub(past[COUNTS], AFTER_COUNTERS), {}
  local last = 4 * (byte(rest) or 0)
  for at = 2, last, 4 do
    waits[#waits + 1] = struct.unpack('>I4', rest, at)
  end
  return waits, sub(rest, last + 2)
end

local IS_WAIT = { busy = true, left = true, superseded = true }

-- Enters a request that ends without a grant; `how` is a word for that. The requests of a job since
-- the last run share an entry. If the history has as many of them as it may have, the oldest entry
-- is replaced. The caller has set `now`.
local function enter_wait(r, known, claims, how, asked)
  local past = past_of(r)
  local numbers, later = waits_of(past)
  local limit, kept, own, oldest = known[HISTORY], {}, nil, nil
  for i = 1, #numbers do
    local raw, index = entry_at(r, numbers[i])
    local entry = raw and raw ~= '' and { struct.unpack(ENTRY_HEAD, raw) } or {}
    if IS_WAIT[entry[1]] then
      local _, fixed = unpacked(sub(raw, entry[7]))
      local its = { number = numbers[i], index = index, times = entry[2], asked = entry[3], sum = entry[4], ended = entry[5], longest = entry[6] }
      kept[#kept + 1] = its
      own = own or fixed[JOB - FIXED] == known[JOB] and its.ended >= past[ENDED] and its
      oldest = (not oldest or its.ended < oldest.ended) and its or oldest
    end
  end
  local max, wait = math.min(WAITS_MAX, math.floor(limit / WAITS_SHARE)), now - asked
  if max == 0 or own and wait == 0 and now - own.ended < WAITS_APART then
    return
  end
  local first, times = own and own.asked or asked, own and own.times + 1 or 1
  local sum, longest = (own and own.sum or 0) + wait, math.max(own and own.longest or 0, wait)
  local entry = entry_of(how, times, first, sum, longest, claims .. origin(r, known))
  local place = own or #kept >= max and oldest
  if place then
    enter(r, limit, entry, place.index)
  else
    kept[#kept + 1] = { number = enter(r, limit, entry) }
  end
  local packed = char(#kept)
  for i = 1, #kept do
    packed = packed .. struct.pack('>I4', kept[i].number)
  end
  local counters = past[COUNTS] == '' and struct.pack(COUNTERS, 0, 0, 0, 0) or sub(past[COUNTS], 1, AFTER_COUNTERS - 1)
  past[COUNTS] = counters .. packed .. later
end

-- Enters a session that was told that its run is done, because of a success of the job `by`.
local function note_spared(r, known, claims, by)
  now = r.now
  local jobs = jobs_of(r)
  local job = jobs[by]
  job[SPARED], job[FIRST_SPARED] = job[SPARED] + 1, job[SPARED] > 0 and job[FIRST_SPARED] or now
  local entry = entry_of('done', job[SPARED], job[FIRST_SPARED], 0, 0, claims .. origin(r, known))
  job[SPARED_ENTRY] = enter_again(r, known[HISTORY], entry, job[SPARED_ENTRY])
  keep_jobs(r, jobs)
end

-- Notes that a request supersedes the earlier waiters of its job. It has no place in the queue yet.
local function note_superseded(r, known)
  local jobs = jobs_of(r)
  local job = jobs[known[JOB]] or no_job()
  jobs[known[JOB]] = job
  job[SUPERSEDED], job[SUPERSEDED_AT], job[SUPERSEDED_BY] = r.seq + 1, r.now, known[PROCESS]
  keep_jobs(r, jobs)
end

-- Returns the process of the request that has superseded the waiter of a job with a number in the
-- queue, or nil.
local function superseded_by(r, known, number)
  local job = number > 0 and past_of(r)[JOBS] ~= '' and jobs_of(r)[known[JOB]]
  return job and number < job[SUPERSEDED] and job[SUPERSEDED_BY] or nil
end

-- Counts a request of an instant that was told to be busy; `how` is 'busy' or 'superseded'. Returns
-- the streak of its job, if the request counts as a skip: the number of skips, the instants of the
-- first and the last, and the process of the last.
local function note_busy(r, known, claims, how, asked)
  local past = changed_past(r)
  now = r.now
  add_to(past, BUSY, 1)
  local jobs = jobs_of(r)
  local job = jobs[known[JOB]] or no_job()
  if known[SKIPS] == 1 then
    if job[COUNT] == 0 or job[LAST_SKIP] + KEEP <= now then
      job[COUNT], job[FIRST_SKIP], job[ENTRY] = 0, now, -1
    end
    job[COUNT], job[LAST_SKIP], job[COMMAND], jobs[known[JOB]] = job[COUNT] + 1, now, known[PROCESS], job
    local entry = entry_of('skipped', job[COUNT], job[FIRST_SKIP], 0, 0, claims .. origin(r, known))
    job[ENTRY] = enter_again(r, known[HISTORY], entry, job[ENTRY])
  else
    enter_wait(r, known, claims, how, asked)
  end
  keep_jobs(r, jobs)
  return known[SKIPS] == 1 and { job[COUNT], job[FIRST_SKIP], job[LAST_SKIP], job[COMMAND] } or {}
end

-- Notes how the hold or the command of a session has ended at the instant `now`.
local function note_run(r, known, outcome, success, limit)
  local token = 0
  for i = 1, #known[CLAIMS] do
    local its = known[CLAIMS][i][TOKEN]
    token = its > token and its or token
  end
  if limit == 0 then
    forget(r)
  else
    enter(r, limit, entry_of(outcome, 1, known[ASKED], known[SINCE], token, pack(known[CLAIMS]) .. origin(r, known)))
  end
  local past = changed_past(r)
  note_outcome(past, outcome, success)
  add_to(past, LOST, outcome == 'lost' and 1 or 0)
  add_to(past, EXPIRED, outcome == 'expired' and 1 or 0)
  if (known[REMEMBER] or 0) > 0 then
    past[BOUND] = math.max(past[BOUND], r.now + math.min(known[REMEMBER], PERIOD_MAX))
  end
  if success and (known[ONCE_PER] > 0 or known[IS_NAMED] == 1) then
    note_success(r, known)
  end
end
