-- The constants of all scripts. The build script writes their values in place of their names: a
-- server would define each of them anew in every call, and a function of Lua may use only 60
-- variables from outside. The script adds those that the model has, too, from its tables.rs:
-- assembly.rs lists them.

-- A record. Each resource that is not quiet keeps one for every session that has claims on it. The
-- fields from LEASE on never change; FIXED is their packed form, with which a record in d ends.
-- A later version may add to MORE and to the fields that never change, and to the values in s.
-- Every version keeps what it does not know.
-- Instants and lengths of time are in µs.
--
-- HELD          what the session has, see below
-- SINCE         the instant of the grant, or of the request while it waits
-- SEQ           the number of the request in the queue; 0 where it was granted at once
-- LISTENING     1 when the session said that it is subscribed to its channel
-- ASKED         the instant of the request
-- NAMES         false for a request on one resource; else the names of its resources, or the first
-- TTL           how long a grant lasts without a renewal
-- LAST          how the hold before this one had ended at the grant
-- CLAIMS        the claims on this resource
-- MORE          nil, or what few records have, by name: `revoked` has the instant of the first demand
--               that the session gives its grant back, and the process of the last one
-- LEASE         how long a grant from the queue lives until it is claimed
-- HEARTBEAT     how long a waiter keeps its place without a sign of life
-- CHANNEL       the channel on which the session hears of its grant
-- ANCESTORS     their ids, innermost first, without a separator
-- PROCESS       JSON, which the scripts only keep
-- HISTORY       how many entries the history keeps if the session ends without a release
-- JOB           the name of the job
-- ONCE_PER      the period of one run, or 0
-- SAME_JOB      1 if only runs of the same job count for it
-- SKIPS         1 if a busy reply counts as a skip of the job
-- HOLD_AT_LEAST how long the hold lasts even if the command ends sooner, or 0
-- KEEP_FOR      how long a kept hold lasts; 0 for a hold that has a process
-- IS_ACQUIRE    1 if `rlock acquire` made the request
-- HELD_ABOVE    the names of the resources that the ancestors hold, as far as the request knows
-- REMEMBER      how long the resources remember what they know after the end of the hold, or 0
local HELD, SINCE, SEQ, LISTENING, ASKED, NAMES, TTL, LAST, CLAIMS, MORE, FIXED = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11
local LEASE, HEARTBEAT, CHANNEL, ANCESTORS, PROCESS, HISTORY = 12, 13, 14, 15, 16, 17
local JOB, ONCE_PER, CALENDAR, IS_NAMED, SKIPS, HOLD_AT_LEAST, KEEP_FOR = 18, 19, 20, 21, 22, 23, 24
local IS_ACQUIRE, HELD_ABOVE, REMEMBER = 25, 26, 27
-- What HELD says: the session waits, holds, has a kept hold, or has a grant that becomes a kept
-- hold when it is claimed.
local WAITS, HOLDS, KEPT, TO_KEEP = 0, 1, 2, 3
-- A claim in a record. Its mode is r, p, w, s or h, where h is a share of a slot that an ancestor
-- holds. A held slot has a number.
local INDEX, MODE, SLOTS, LO, HI, TEXT, TOKEN, SLOT = 1, 2, 3, 4, 5, 6, 7, 8

-- The fields that follow in s, as the library struct writes them: cmsgpack would make a string of
-- each. A time is a double, because a server of 32 bits has no longer integers. If no session uses
-- the resource, these are clock, token and seq, and the past is the rest. Beside a sole holder they
-- are clock, expiry, token, seq, past, since, ttl, the session, and what is beyond a plain hold. If
-- the resource is not quiet, they are clock, token, seq and past.
local STATE_OF_NOBODY, STATE_OF_SOLE, STATE_OF_SEVERAL = '>ddd', '>ddddI4c0ddc32I4c0', '>dddI4c0'
-- Where the fields begin, and where the past begins if no session uses the resource.
local FIELDS, PAST_OF_NOBODY = 5, 29
-- The two fields that a renewal changes, the bytes before them, and where the others begin.
local CLOCK_AND_EXPIRY, BEFORE_CLOCK, AFTER_EXPIRY = '>dd', '4', 21

-- A past. OUTCOME tells how the last hold ended whose end is known, and ENDED when. JOBS is empty
-- or the packed jobs. ENTERED counts the entries of the history, and no entry before the number
-- FIRST is left. SUCCEEDED is the instant of the last success, ENDS the number of ended holds, and
-- HELD_FOR the time for which they were held. BOUND is 0, or the instant until which a success must
-- not be forgotten. COUNTS is empty as long as all other counters are 0.
local OUTCOME, JOBS, ENDED, ENTERED, FIRST, SUCCEEDED, ENDS, HELD_FOR, BOUND, COUNTS = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
-- A past as struct writes it, its first two fields, and its length without texts.
local PAST, OUTCOME_AND_JOBS, PAST_LENGTH = '>I1c0I4c0dI4I4dI4ddI1c0', '>I1c0I4c0', 50
-- The other counters: the time for which holds had waited, and the numbers of busy requests and of
-- lost and expired holds. How struct writes them, and where the numbers of the entries about waits
-- follow: a byte with their number, and 4 bytes for each. A later version adds more behind them.
local WAITED, BUSY, LOST, EXPIRED = 1, 2, 3, 4
local COUNTERS, AFTER_COUNTERS = '>dI4I4I4', 21

-- The beginning of an entry of the history as struct writes it: the outcome, the number of requests
-- without a grant, the instants of the request, the grant and the end, and the token. Requests that
-- were busy, left the queue or were superseded have the sum and the longest of their waits
-- in place of the grant and the token.
local ENTRY_HEAD = '>I1c0I4dddd'

-- What a past has of a job, by its name: the instant that counts for its last run that asked for
-- one run in a period and succeeded, mostly its grant; the number of its skips in a row, the first
-- and the last of them, their entry in the history, and the process of the last; and the longest
-- period for which a request has asked for one run since the success, which is not forgotten
-- before.
local SUCCESS, COUNT, FIRST_SKIP, LAST_SKIP, ENTRY, COMMAND, PERIOD = 1, 2, 3, 4, 5, 6, 7
-- The end of the last success of a job that the caller named; and the number of requests that were
-- told that the run is done since the success, the first of them, and their entry in the history.
local LAST_END, SPARED, FIRST_SPARED, SPARED_ENTRY = 8, 9, 10, 11
-- The last request that has superseded the waiters of the job: 0, or the smallest number in the
-- queue that it has not superseded; its instant and its process.
local SUPERSEDED, SUPERSEDED_AT, SUPERSEDED_BY = 12, 13, 14

-- What one call removes at most, because the server serves no other client meanwhile: CROWD
-- sessions, which cost LOAD together. A claim costs 1 and a name NAME_COST. One session may cost
-- more.
local CROWD, LOAD, NAME_COST = 100, 1000, 6

-- A script declares the names of up to HEADS waiters at the head of a queue before it grants
-- anything. It leaves out waiters if it asks for more than HEAD_NAMES names.
local HEADS = 8

-- How much one call looks for waiters to grant, in units of about 5 microseconds, and what it
-- costs to read a waiter, to look at one that was read, to try a claim and to grant one.
local WORK, READ, LOOK, TRY, GRANT = 1000, 1, 0.1, 8, 10

-- A walk along the queue of a resource: where it goes, the modes of the waiters that it looks for,
-- and how many such claims lie ahead. A walk that was cut short has the number of the next waiter,
-- and the modes in which no later waiter can be granted. A slot that is given up has a walk along
-- its shares, with its number in FROM, and with a member of l in NEXT.
local WHERE, FROM, TO, MODES, AHEAD_OF_IT, NEXT, CLOSED = 1, 2, 3, 4, 5, 6, 7

-- Maximum number of waiters that are read at once.
local BATCH = 256

-- In a queue of more than LONG waiters, the script looks for those that overlap a span by their
-- cuts, if there are at most NEAR_MAX of them in a mode.
local LONG, NEAR_MAX = 64, 16

-- Maximum number of walks that are put off one by one. More walks become one along the whole queue.
local WALKS_MAX = 100
