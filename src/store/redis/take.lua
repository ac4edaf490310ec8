-- Counts hits in the tiers of one target: in all of them, or in none.
--
-- Lua's numbers are doubles, so times are whole microseconds since the epoch and tokens are multiples of a power of two;
-- both are exact. Rounding never admits more. All values are read and validated before the first one is written, so a
-- script that fails has changed nothing.
--
-- KEYS    one for each tier
-- ARGV    one, packed, because seventeen separate arguments took a large part of a call's time:
--         op, now, hits, want, hold, jitter, and then seven for each tier:
--         kind, requests, period, start, end, burst, mode
--   op      'a', add: counts hits, which may be negative, whether or not they fit
--           'r', return: gives back granted hits that were not used
--           't', take: takes hits, if all tiers admit them
--           'g', grant: takes as many hits as all tiers admit, at least hits and at most want
--   now     the time; negative in production, where the server's clock is used
--   hold    for a grant, the time within which the hits must be used; for a return, the end of that time
--   jitter  milliseconds that a key outlives its use
--   kind    'f': a fixed window from start to end; 's': a sliding window; 'b': a bucket of burst tokens, whose mode is the
--           sum of 1 if it is refilled in steps and 2 if it is strict
-- Returns granted, now and the state of each tier, separated by |; or 'moved' and now, if the window of a fixed tier is not
-- open now. src/store/encoding.rs documents the states.

local MAX_SPAN_HITS = 4294967295
local MAX_SPANS = 14
local EXACT = 9007199254740992

local op, now, hits, want, hold, jitter, offset = struct.unpack('<c1ddddd', ARGV[1])
if now < 0 then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- a report that this script does not know
if op == 'x' then
  return redis.error_reply('ERR unknown report')
end

local function whole(number)
  return string.format('%.0f', number)
end

-- Returns the milliseconds until `idle`, plus the jitter: at least 1, since 0 would delete the key.
local function ttl(idle)
  return whole(math.max(1, math.ceil((idle - now) / 1000)) + jitter)
end

local fixed = {}

function fixed.load(tier, text)
  tier.used = 0
  if text then
    if not string.find(text, '^%d+$') then return false end
    tier.used = tonumber(text)
  end
  tier.change = 0
  return true
end

function fixed.admits(tier, n)
  return tier.used + n <= tier.requests
end

function fixed.room(tier)
  return tier.requests - tier.used
end

function fixed.take(tier, n)
  tier.used, tier.change = tier.used + n, tier.change + n
end

function fixed.give_back(tier, n)
  fixed.take(tier, -math.min(n, tier.used))
end

function fixed.reject() end

-- Writes the format of envoyproxy/ratelimit, which may count in the same key.
function fixed.save(tier)
  if tier.change ~= 0 then
    redis.call('INCRBY', tier.key, whole(tier.change))
    redis.call('PEXPIRE', tier.key, ttl(tier.ends))
  end
end

function fixed.state(tier)
  return whole(tier.used)
end

-- The state is 's', the start of the newest span, and for each span, oldest first, the time from that start to its last hit,
-- and its hits.
local sliding = {}

function sliding.load(tier, text)
  tier.opened, tier.last, tier.hits = now, {}, {}
  if text then
    local fields = string.match(text, '^s( [%d -]+)$')
    if not fields then return false end
    local read = {}
    for number in string.gmatch(fields, ' (%-?%d+)') do
      read[#read + 1] = tonumber(number)
    end
    if #read % 2 == 0 then return false end
    tier.opened = read[1]
    for i = 2, #read, 2 do
      tier.last[i / 2] = tier.opened + read[i]
      tier.hits[i / 2] = read[i + 1]
    end
  end
  return true
end

-- Returns the number of expired spans, which are the oldest.
local function expired(tier)
  local n = 0
  while tier.last[n + 1] and tier.last[n + 1] + tier.period <= now do
    n = n + 1
  end
  return n
end

local function drop(tier)
  table.remove(tier.last, 1)
  table.remove(tier.hits, 1)
  tier.changed = true
end

local function drop_expired(tier)
  for _ = 1, expired(tier) do
    drop(tier)
  end
end

function sliding.room(tier)
  local left = tier.requests
  for i = expired(tier) + 1, #tier.hits do
    left = left - tier.hits[i]
  end
  return left
end

function sliding.admits(tier, n)
  return n == 0 or n <= sliding.room(tier)
end

-- Takes n hits. If they may be used for a time `hold`, they count as of its end.
function sliding.take(tier, n, hold)
  if n == 0 then return end
  drop_expired(tier)
  local at, newest = now + (hold or 0), #tier.last
  if newest > 0 and at < tier.opened + math.ceil(tier.period / 12) then
    -- a clock that steps back must not shorten a span
    tier.last[newest] = math.max(tier.last[newest], at)
    tier.hits[newest] = math.min(tier.hits[newest] + n, MAX_SPAN_HITS)
  else
    tier.opened = at
    tier.last[newest + 1], tier.hits[newest + 1] = at, math.min(n, MAX_SPAN_HITS)
  end
  tier.changed = true
end

-- Counts n hits that were taken at the instant `at`. Before the newest span began, they join the next later span if it ended
-- within a twelfth of a period after them, or if there are many spans.
function sliding.add(tier, n, at)
  if n == 0 or at + tier.period <= now then return end
  if at >= tier.opened or expired(tier) == #tier.last then
    return sliding.take(tier, n, at - now)
  end
  drop_expired(tier)
  local i = 1
  while tier.last[i] < at do
    i = i + 1
  end
  if #tier.last >= MAX_SPANS or tier.last[i] - at < math.ceil(tier.period / 12) then
    tier.hits[i] = math.min(tier.hits[i] + n, MAX_SPAN_HITS)
  else
    table.insert(tier.last, i, at)
    table.insert(tier.hits, i, math.min(n, MAX_SPAN_HITS))
  end
  tier.changed = true
end

-- Gives back the oldest hits first. The others count for longer, so the limit holds whichever hits the caller means.
function sliding.give_back(tier, n)
  if n == 0 or sliding.room(tier) == tier.requests then return end
  drop_expired(tier)
  while n > 0 and tier.hits[1] do
    local back = math.min(n, tier.hits[1])
    tier.hits[1] = tier.hits[1] - back
    n = n - back
    if tier.hits[1] == 0 then
      drop(tier)
    end
    tier.changed = true
  end
end

-- Gives back hits that count as of `until_` or earlier, since later hits belong to other grants.
function sliding.release(tier, n, until_)
  drop_expired(tier)
  local i = 1
  while tier.last[i + 1] and tier.last[i] < until_ do
    i = i + 1
  end
  while n > 0 and i > 0 and tier.hits[i] do
    local back = math.min(n, tier.hits[i])
    tier.hits[i] = tier.hits[i] - back
    n = n - back
    -- the newest span stays even if it is empty: otherwise the next hit would extend the span before it
    if tier.hits[i] == 0 and i < #tier.last then
      table.remove(tier.last, i)
      table.remove(tier.hits, i)
    end
    tier.changed = true
    i = i - 1
  end
end

function sliding.reject() end

function sliding.state(tier)
  local texts = { 's', whole(tier.opened) }
  for i = 1, #tier.last do
    texts[#texts + 1] = whole(tier.last[i] - tier.opened)
    texts[#texts + 1] = whole(tier.hits[i])
  end
  return table.concat(texts, ' ')
end

function sliding.save(tier)
  if not tier.changed then return end
  if #tier.last == 0 then
    redis.call('DEL', tier.key)
  else
    redis.call('SET', tier.key, sliding.state(tier), 'PX', ttl(tier.last[#tier.last] + tier.period))
  end
end

-- The state is 'b', an instant, and the tokens that the bucket lacked then.
local bucket = {}

-- Returns the tokens that flow in during `elapsed`, rounded down to the unit of the tier.
local function inflow(tier, elapsed)
  local product = elapsed * tier.requests
  if product >= EXACT then
    product = product * (1 - 4 / EXACT)
  end
  local rest = math.fmod(product, tier.period)
  return (product - rest) / tier.period + math.floor(rest * tier.unit / tier.period) / tier.unit
end

function bucket.load(tier, text)
  -- small enough that rounding does not matter, large enough that all sums are exact
  tier.unit = tier.burst < 1048576 and 4294967296 or 1048576
  tier.kept_as_of, tier.kept, tier.exists = now, 0, text
  if text then
    local as_of, taken = string.match(text, '^b (%d+) ([%d.e+-]+)$')
    tier.kept_as_of, tier.kept = tonumber(as_of), tonumber(taken)
    if not tier.kept_as_of or not tier.kept then return false end
  end
  -- at most one burst more than it holds is missing: the debt of hits that were admitted elsewhere
  tier.most = math.min(2 * tier.burst, 4294967295)
  tier.held = math.min(tier.kept, tier.most)
  -- a clock that steps back changes nothing
  local elapsed = math.max(0, now - tier.kept_as_of)
  if tier.steps then
    local lasted = elapsed - math.fmod(elapsed, tier.period)
    -- a bucket that has been full for a period counts its steps from the next hit
    tier.idle = tier.held == 0 or (lasted / tier.period - 1) * tier.requests >= tier.held
    if tier.idle then
      lasted = elapsed
    end
    tier.as_of = tier.kept_as_of + lasted
    tier.taken = math.max(0, tier.held - lasted / tier.period * tier.requests)
  else
    tier.as_of = tier.kept_as_of + elapsed
    tier.taken = math.max(0, tier.held - inflow(tier, elapsed))
    tier.idle = tier.taken == 0
  end
  return true
end

function bucket.admits(tier, n)
  return n == 0 or tier.taken <= tier.burst - n
end

function bucket.room(tier)
  return math.floor(tier.burst - tier.taken)
end

local function keep(tier, as_of, taken)
  tier.kept_as_of, tier.kept, tier.changed = as_of, taken, true
end

function bucket.take(tier, n)
  if n > 0 then keep(tier, tier.as_of, tier.taken + n) end
end

function bucket.give_back(tier, n)
  -- the clock of a bucket starts with its first hit
  if n > 0 and tier.taken > 0 then keep(tier, tier.as_of, math.max(0, tier.taken - n)) end
end

function bucket.add(tier, n)
  if n > 0 then keep(tier, tier.as_of, math.min(tier.taken + n, tier.most)) end
end

-- Restarts the refill of a strict bucket: whole refilled tokens stay, the fraction of the next one is lost.
function bucket.reject(tier)
  if tier.strict and now > tier.kept_as_of and not tier.idle then
    keep(tier, now, tier.held - math.floor(tier.held - tier.taken))
  end
end

function bucket.state(tier)
  return string.format('b %.0f %.17g', tier.kept_as_of, tier.kept)
end

function bucket.save(tier)
  if not tier.changed then return end
  local full = 0
  if tier.requests > 0 then
    full = math.min(tier.kept, tier.most) * tier.period / tier.requests
  else
    -- nothing flows in, so the tokens stay taken for as long as Redis can keep the key
    full = 3e15
  end
  if tier.steps then
    full = (math.ceil(full / tier.period) + 1) * tier.period
  end
  redis.call('SET', tier.key, bucket.state(tier), 'PX', ttl(math.min(tier.kept_as_of + full, now + 3e15)))
end

local kinds = { f = fixed, s = sliding, b = bucket }

local tiers = {}
for i = 1, #KEYS do
  local tier, kind, mode = { key = KEYS[i] }
  kind, tier.requests, tier.period, tier.starts, tier.ends, tier.burst, mode, offset =
    struct.unpack('<c1dddddB', ARGV[1], offset)
  tier.kind, tier.steps, tier.strict = kinds[kind], mode % 2 == 1, mode >= 2
  -- admitted hits belong to their window, even if it has ended
  if tier.kind == fixed and op ~= 'a' and op ~= 'r' and (now < tier.starts or now >= tier.ends) then
    return 'moved|' .. whole(now)
  end
  if not tier.kind.load(tier, redis.call('GET', tier.key)) then
    return redis.error_reply('FOREIGN the value of ' .. tier.key .. ' was not written by weir')
  end
  tiers[i] = tier
end

local granted = 0
if op == 'a' then
  for _, tier in ipairs(tiers) do
    if hits < 0 then
      tier.kind.give_back(tier, -hits)
    else
      local add = tier.kind.add or tier.kind.take
      add(tier, hits, now)
    end
  end
  granted = math.max(0, hits)
elseif op == 'r' then
  for _, tier in ipairs(tiers) do
    local release = tier.kind.release or tier.kind.give_back
    release(tier, hits, hold)
  end
elseif op == 't' then
  local admitted, rejects = true, {}
  for i, tier in ipairs(tiers) do
    rejects[i] = not tier.kind.admits(tier, hits)
    admitted = admitted and not rejects[i]
  end
  for i, tier in ipairs(tiers) do
    if admitted then
      tier.kind.take(tier, hits)
    elseif rejects[i] then
      tier.kind.reject(tier)
    end
  end
  granted = admitted and hits or 0
else
  granted = want
  for _, tier in ipairs(tiers) do
    granted = math.min(granted, tier.kind.room(tier))
  end
  if granted < hits then
    granted = 0
  end
  for _, tier in ipairs(tiers) do
    tier.kind.take(tier, granted, hold)
  end
end

local reply = { whole(granted), whole(now) }
for i, tier in ipairs(tiers) do
  tier.kind.save(tier)
  reply[i + 2] = tier.kind.state(tier)
end
return table.concat(reply, '|')
