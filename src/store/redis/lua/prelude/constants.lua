-- The constants of all scripts. The build script writes their values in place of their names: a
-- server would define each of them anew in every call, and a function of Lua may use only 60
-- variables from outside.

-- A record. Each resource that is not quiet keeps one for every session that has claims on it. The
-- fields from LEASE on never change; FIXED is their packed form, with which a record in d ends.
local HELD, SINCE, SEQ, LISTENING, ASKED, NAMES, TTL, LAST, CLAIMS, FIXED = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
local LEASE, HEARTBEAT, CHANNEL, ANCESTORS, PROCESS, HISTORY = 11, 12, 13, 14, 15, 16
local JOB, ONCE_PER, SAME_JOB, SKIPS, HOLD_AT_LEAST, KEEP_FOR, IS_ACQUIRE, HELD_ABOVE = 17, 18, 19, 20, 21, 22, 23, 24
-- What HELD says: the session waits, holds, has a kept hold, or has a grant that becomes a kept
-- hold when it is claimed.
local WAITS, HOLDS, KEPT, TO_KEEP = 0, 1, 2, 3
-- A claim in a record. Its mode is r, p, w, s or h, where h is a share of a slot that an ancestor
-- holds. A held slot has a number.
local INDEX, MODE, SLOTS, LO, HI, TEXT, TOKEN, NESTED, SLOT = 1, 2, 3, 4, 5, 6, 7, 8, 9

-- The format of the keys, with which s begins, and its packed form.
local FORMAT, PACKED = 'R2', '\162R2'

-- What s has in the place of the sole holder if no session uses the resource, and if it is not
-- quiet.
local NOBODY, SEVERAL = '', '+'

-- A past. OUTCOME tells how the last hold ended whose end is known, and ENDED when. JOBS is empty
-- or the packed jobs. ENTERED counts the entries of the history, and no entry before the number
-- FIRST is left. The other fields are the instant of the last success, the number of ended holds,
-- the time for which they were held and had waited, and the numbers of busy requests and of lost
-- and expired holds.
local OUTCOME, ENDED, JOBS, ENTERED, FIRST = 1, 2, 3, 4, 5
local SUCCEEDED, ENDS, HELD_FOR, WAITED, BUSY, LOST, EXPIRED = 6, 7, 8, 9, 10, 11, 12

-- The time in ms for which the state of an unused resource is kept. Tokens follow the clock, so
-- nothing needs it for longer.
local IDLE = 3600000

-- The time in ms for which an unused resource keeps its history and what it remembers of jobs.
local KEEP = 604800000

-- What a past has of a job, by its name: the grant of its last run that asked for one run in a
-- period and succeeded; the number of its skips in a row, the first and the last of them, their
-- entry in the history, and the process of the last.
local SUCCESS, COUNT, FIRST_SKIP, LAST_SKIP, ENTRY, COMMAND = 1, 2, 3, 4, 5, 6

-- Maximum number of jobs that a resource remembers. Each change of the past writes all of them.
local JOBS_MAX = 100

-- Maximum length of a kept hold, in microseconds.
local KEPT_MAX = 604800000000

-- Maximum number of a resource's expired sessions that one call drops, because the server serves no
-- other client meanwhile. If there may be more, the others count as before, and a request that
-- would have to wait asks again.
local CROWD = 1000

-- How far the numbers of nested waiters lie ahead of others.
local AHEAD = 4503599627370496
