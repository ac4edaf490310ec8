-- Counts hits in the tiers of one target: in all of them, or in none.
--
-- Lua's numbers are doubles, so times are whole microseconds since the epoch and tokens are multiples of a power of
-- two; both are exact. Lua 5.4 (Dragonfly) has integers, too, whose products wrap: one factor is always a double.
-- Rounding never admits more. All values are read and validated before the first one is written, so a script that fails
-- has changed nothing; and Redis refuses the first write if it refuses any (OOM, READONLY, MISCONF).
--
-- KEYS    one for each tier, and then one for each other window that a report is about
-- ARGV    one, packed, because seventeen separate arguments took a large part of a call's time:
--         now, jitter, writer, reports, runs, how, least, want, hold; for each key seven: kind, requests, period, start, end, burst, mode;
--         for each report seven; if there are reports, counted; for each run three. They are carried out in this order: reports, runs, hold
--   now     the time; negative in production, where the server's clock is used
--   jitter  milliseconds that a key outlives its use
--   writer  the instance that sends it, which is noted in the sliding windows and buckets that it changes
--   reports, runs  how many there are
--   how     the sum of 1 if the runs change nothing once a try is rejected, and 2 if some give hits back
--   least, want, hold  takes as many hits as all tiers admit, at least and at most so many, to be used within the time hold; want is 0 if
--           there is nothing to hold
--   kind    'f': a fixed window from start to end; 's': a sliding window; 'b': a bucket of burst tokens
--   mode    the sum of 1 for a bucket that is refilled in steps, and 2 for a strict bucket
--   report  at, hits, floor, unused, until_, rejected_at, keys. weir-store/remote.rs documents them but for the last: the sum
--           of 2^i for the i-th key, from 0, that the report is about
--   counted the number of tiers, whose keys are the first ones
--   run     hits, tries, counts: makes so many tries, each of which takes the hits if all tiers admit them. counts is 1 if rejected hits
--           count too, and 2 if the hits are given back
-- Returns the hits that are held, and the tries of each run that took their hits, separated by commas, with the sum of
-- 2^i for each i-th sliding window or bucket that the writer has changed last, a comma, the same for those that were not there, and =
-- before them; now; and the state of each tier after the reports, before the runs,
-- separated by |. Or 'moved' and now, if something is to be decided and the window of a fixed tier is not open now.
-- weir-store/encoding.rs documents the states.

local MAX_SPAN_HITS = 4294967295
local MAX_SPANS = 14
local EXACT = 9007199254740992
-- microseconds that a bucket outlives its last change, so that others see who has made it
local BUCKET_LINGER = 2000000

local now, jitter, writer, reports, runs, how, least, want, hold, offset = struct.unpack('<ddsBBBddd', ARGV[1])
local decides, gives_back = runs > 0 or want > 0, how >= 2
if now < 0 then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local function whole(number)
  return string.format('%.0f', number)
end

-- Returns the milliseconds until `idle`, plus the jitter: at least 1, since 0 would delete the key.
local function ttl(idle)
  return math.max(1, math.ceil((idle - now) / 1000)) + jitter
end

-- Writes the state of a sliding window or bucket that is unused from `idle` on. It lives at least as long as the one
-- that it replaces, so that no instance takes a counter that was given back for one that has expired.
local function write(tier, text, idle)
  local keep = ttl(math.max(idle, now + tier.linger))
  if tier.text and tier.is_less then
    keep = math.max(keep, redis.call('PTTL', tier.key))
  end
  redis.call('SET', tier.key, text, 'PX', whole(keep))
end

local fixed = {}

function fixed.load(tier, text)
  tier.used, tier.change = 0, 0
  if text then
    -- longer numbers could overflow in INCRBY
    if not string.find(text, '^%d+$') or #text > 18 then return false end
    tier.used = tonumber(text)
  end
  return true
end

function fixed.room(tier)
  return tier.requests - tier.used
end

function fixed.take(tier, n)
  if n > 0 then n = math.max(0, math.min(n, EXACT - tier.used)) end
  tier.used, tier.change = tier.used + n, tier.change + n
end

function fixed.reject() end

-- Writes the format of envoyproxy/ratelimit, which may count in the same key.
function fixed.save(tier)
  if tier.change ~= 0 then
    redis.call('INCRBY', tier.key, whole(tier.change))
    redis.call('PEXPIRE', tier.key, whole(ttl(tier.ends)))
  end
end

function fixed.encode(tier)
  return whole(tier.used)
end

-- The state is 'w', the writer, the start of the newest span, and for each span, oldest first, the time from that
-- start to its last hit, and its hits.
local sliding = { has_writer = true }

function sliding.load(tier, text)
  tier.linger, tier.opened, tier.last, tier.hits = 0, now, {}, {}
  if text then
    local fields = string.match(text, '^w %d+( [%d -]+)$')
    if not fields then return false end
    local read = {}
    for number in string.gmatch(fields, ' (%-?%d+)') do
      read[#read + 1] = tonumber(number)
    end
    if #read % 2 == 0 then return false end
    local opened = read[1]
    tier.opened = opened
    for i = 2, #read, 2 do
      tier.last[i / 2] = opened + read[i]
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
end

local function drop_expired(tier)
  for _ = 1, expired(tier) do
    drop(tier)
  end
end

local function sum(tier)
  local used = 0
  for i = expired(tier) + 1, #tier.hits do
    used = used + tier.hits[i]
  end
  return used
end

function sliding.room(tier)
  return tier.requests - sum(tier)
end

-- Takes n hits. If they may be used for a time `hold_`, they count as of its end.
function sliding.take(tier, n, hold_)
  if n == 0 then return end
  drop_expired(tier)
  local at, newest = now + (hold_ or 0), #tier.last
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

function sliding.reject() end

function sliding.encode(tier)
  drop_expired(tier)
  local opened = tier.opened
  local texts = { 'w', writer, whole(opened) }
  for i = 1, #tier.last do
    texts[2 * i + 2] = whole(tier.last[i] - opened)
    texts[2 * i + 3] = whole(tier.hits[i])
  end
  return table.concat(texts, ' ')
end

function sliding.save(tier, text)
  -- hits that came and went leave no counter behind
  if tier.text or sum(tier) > 0 then
    local n = #tier.last
    write(tier, text, n > 0 and tier.last[n] + tier.period or now)
  end
end

function sliding.unused()
  return 'w 0 ' .. whole(now)
end

-- The state is 'b', the writer, an instant, and the tokens that the bucket lacked then.
local bucket = { has_writer = true }

-- Returns the tokens that flow in during `elapsed`, rounded down to the unit of the tier.
local function inflow(tier, elapsed)
  local product = elapsed * tier.requests
  if product >= EXACT then
    product = product * (1 - 4 / EXACT)
  end
  local rest = math.fmod(product, tier.period)
  return (product - rest) / tier.period + math.floor(rest * tier.unit / tier.period) / tier.unit
end

-- Computes the tokens that are missing at the instant `at`, and since when. A clock that steps back changes nothing.
local function refill(tier, at)
  local elapsed = math.max(0, at - tier.kept_as_of)
  -- a bucket that has been full for a period counts its steps from the next hit
  tier.idle = tier.kept == 0
  if tier.idle then
    tier.as_of, tier.taken = tier.kept_as_of + elapsed, 0
  elseif tier.steps then
    local steps = (elapsed - math.fmod(elapsed, tier.period)) / tier.period
    tier.idle = (steps - 1) * tier.requests >= tier.kept
    tier.as_of = tier.kept_as_of + (tier.idle and elapsed or steps * tier.period)
    tier.taken = math.max(0, tier.kept - steps * tier.requests)
  else
    tier.as_of = tier.kept_as_of + elapsed
    tier.taken = math.max(0, tier.kept - inflow(tier, elapsed))
    tier.idle = tier.taken == 0
  end
end

function bucket.load(tier, text)
  -- small enough that rounding does not matter, large enough that all sums are exact
  tier.unit = tier.burst < 1048576 and 2147483648.0 or 1048576.0
  -- the debt of hits that were admitted elsewhere, or count although they were rejected, is at most one burst
  tier.most = math.min(2 * tier.burst, 4294967295)
  tier.linger, tier.kept_as_of, tier.kept = BUCKET_LINGER, 0, 0
  if text then
    local mark, as_of, taken = string.match(text, '^([bd]) %d+ (%d+) ([%d.e+-]+)$')
    tier.kept_as_of, tier.kept = tonumber(as_of), tonumber(taken)
    if not tier.kept_as_of or not tier.kept or tier.kept < 0 then return false end
    -- tokens above the burst without the mark of a debt were taken before the burst was lowered
    tier.kept = math.min(tier.kept, mark == 'd' and tier.most or tier.burst)
  end
  refill(tier, now)
  return true
end

function bucket.room(tier)
  return math.floor(tier.burst - tier.taken)
end

local function keep(tier, as_of, taken)
  tier.kept_as_of, tier.kept, tier.changed = as_of, taken, true
end

function bucket.take(tier, n)
  if n > 0 then
    keep(tier, tier.as_of, math.min(tier.taken + n, tier.most))
    tier.taken, tier.idle = tier.kept, false
  end
end

-- Restarts the refill of a strict bucket, whose state is that of the instant `at`: whole refilled tokens stay, the
-- fraction of the next one is lost.
function bucket.reject(tier, at)
  if tier.strict and at > tier.kept_as_of and not tier.idle then
    keep(tier, at, tier.kept - math.floor(tier.kept - tier.taken))
    tier.as_of, tier.taken = tier.kept_as_of, tier.kept
  end
end

function bucket.encode(tier)
  return string.format('%s %s %.0f %.17g', tier.kept > tier.burst and 'd' or 'b', writer, tier.kept_as_of, tier.kept)
end

function bucket.save(tier, text)
  local full = 0
  if tier.requests > 0 then
    full = tier.kept * tier.period / tier.requests
  elseif tier.kept > 0 then
    -- nothing flows in, so the tokens stay taken for as long as Redis can keep the key
    full = 3e15
  end
  if tier.steps then
    full = (math.ceil(full / tier.period) + 1) * tier.period
  end
  write(tier, text, math.min(tier.kept_as_of + full, now + 3e15))
end

function bucket.unused()
  return 'b 0 0 0'
end

-- Defined for reports and returns only, because definitions take time.
if reports > 0 or gives_back then
  function fixed.report(tier, report)
    local used = math.max(0, tier.used - report.unused)
    used = math.max(used + report.hits, report.floor)
    fixed.take(tier, used - tier.used)
  end

  -- Counts n hits that were taken at the instant `at`. Before the newest span began, they join the next later span if
  -- it ended within a twelfth of a period after them, or if there are many spans.
  local function insert(tier, n, at)
    if at + tier.period <= now then return end
    drop_expired(tier)
    if #tier.last == 0 or at >= tier.opened then
      return sliding.take(tier, n, at - now)
    end
    local i = 1
    while tier.last[i] and tier.last[i] < at do
      i = i + 1
    end
    if tier.last[i] and (#tier.last >= MAX_SPANS or tier.last[i] - at < math.ceil(tier.period / 12)) then
      tier.hits[i] = math.min(tier.hits[i] + n, MAX_SPAN_HITS)
    else
      table.insert(tier.last, i, at)
      table.insert(tier.hits, i, math.min(n, MAX_SPAN_HITS))
    end
    tier.changed = true
  end

  -- Gives back up to n hits of span i, and returns how many are left.
  local function give_back_span(tier, i, n)
    local back = math.min(n, tier.hits[i])
    if back > 0 then
      tier.hits[i] = tier.hits[i] - back
      tier.changed, tier.is_less = true, true
    end
    return n - back
  end

  -- Gives back the oldest hits first. The others count for longer, so the limit holds whichever hits the caller means.
  local function give_back(tier, n)
    drop_expired(tier)
    while n > 0 and tier.hits[1] do
      n = give_back_span(tier, 1, n)
      while tier.hits[1] == 0 do
        drop(tier)
      end
    end
  end

  -- Gives back hits that were reserved until `until_`: from the first span that ends then or later, then from older
  -- ones, then from later ones. Nothing if they count no more.
  local function release(tier, n, until_)
    drop_expired(tier)
    if until_ + tier.period <= now then return end
    local first = 1
    while tier.last[first + 1] and tier.last[first] < until_ do
      first = first + 1
    end
    local left = n
    for i = math.min(first, #tier.last), 1, -1 do
      left = give_back_span(tier, i, left)
    end
    for i = first + 1, #tier.last do
      left = give_back_span(tier, i, left)
    end
    -- the newest span stays even if it is empty: otherwise the next hit would extend the span before it
    for empty = left < n and #tier.last - 1 or 0, 1, -1 do
      if tier.hits[empty] == 0 then
        table.remove(tier.last, empty)
        table.remove(tier.hits, empty)
      end
    end
  end

  function sliding.report(tier, report)
    if report.unused > 0 then
      release(tier, report.unused, report.until_)
    end
    local used = sum(tier)
    local change = math.max(used + report.hits, report.floor) - used
    if change < 0 then
      give_back(tier, -change)
    elseif change > 0 then
      insert(tier, change, report.at)
    end
  end

  local function set_taken(tier, taken)
    taken = math.min(taken, tier.most)
    if taken ~= tier.taken then
      tier.is_less = tier.is_less or taken < tier.taken
      keep(tier, tier.as_of, taken)
    end
  end

  function bucket.report(tier, report)
    local at, rejected_at = report.at, report.rejected_at
    set_taken(tier, math.max(0, tier.taken - report.unused))
    if rejected_at >= 0 and rejected_at <= at then
      refill(tier, rejected_at)
      bucket.reject(tier, rejected_at)
    end
    refill(tier, at)
    set_taken(tier, math.max(tier.taken + report.hits, report.floor))
    if rejected_at > at then
      refill(tier, rejected_at)
      bucket.reject(tier, rejected_at)
    end
    refill(tier, now)
  end
end

local kinds = { f = fixed, s = sliding, b = bucket }

-- The tiers, each in the window that is decided about, and after them other windows of fixed tiers.
local tiers = {}
for i = 1, #KEYS do
  local tier, kind, mode = { key = KEYS[i], bit = 2 ^ (i - 1) }
  kind, tier.requests, tier.period, tier.starts, tier.ends, tier.burst, mode, offset =
    struct.unpack('<c1dddddB', ARGV[1], offset)
  tier.kind, tier.steps, tier.strict = kinds[kind], mode % 2 == 1, mode >= 2
  tiers[i] = tier
end

local reported = {}
for i = 1, reports do
  local report = {}
  report.at, report.hits, report.floor, report.unused, report.until_, report.rejected_at, report.keys, offset =
    struct.unpack('<ddddddd', ARGV[1], offset)
  report.at, report.rejected_at = math.min(report.at, now), math.min(report.rejected_at, now)
  reported[i] = report
end
local counted = #KEYS
if reports > 0 then
  counted, offset = struct.unpack('<B', ARGV[1], offset)
end

for i, tier in ipairs(tiers) do
  -- admitted hits belong to their window, even if it has ended
  if decides and i <= counted and tier.kind == fixed and (now < tier.starts or now >= tier.ends) then
    return 'moved|' .. whole(now)
  end
  tier.text = redis.call('GET', tier.key)
end

local own, missing = 0, 0
for i, tier in ipairs(tiers) do
  if not tier.kind.load(tier, tier.text) then
    return redis.error_reply('FOREIGN the value of ' .. tier.key .. ' was not written by weir')
  end
  if tier.kind.has_writer and i <= 32 then
    if not tier.text then
      missing = missing + tier.bit
    elseif string.match(tier.text, '^%l (%d+) ') == writer then
      own = own + tier.bit
    end
  end
  for _, report in ipairs(reported) do
    if math.floor(report.keys / tier.bit) % 2 == 1 then tier.kind.report(tier, report) end
  end
  if not tier.kind.has_writer or tier.changed then
    tier.told = tier.kind.encode(tier)
  else
    tier.told = tier.text or tier.kind.unused()
  end
end

-- Returns how many hits all tiers admit, at most n.
local function room(n)
  for i = 1, counted do
    n = math.min(n, tiers[i].kind.room(tiers[i]))
  end
  return n
end

local function take(n, hold_)
  for i = 1, counted do
    tiers[i].kind.take(tiers[i], n, hold_)
  end
end

-- Has strict buckets notice a rejected try, where it does not fit.
local function reject(hits)
  for i = 1, counted do
    if tiers[i].kind.room(tiers[i]) < hits then tiers[i].kind.reject(tiers[i], now) end
  end
end

local before
if how % 2 == 1 then
  local function copy(from)
    local copied = {}
    for field, value in pairs(from) do
      copied[field] = type(value) == 'table' and field ~= 'kind' and copy(value) or value
    end
    return copied
  end
  before = copy(tiers)
end

local taken, rejected = {}, {}
for i = 1, runs do
  local hits, tries, counts
  hits, tries, counts, offset = struct.unpack('<ddB', ARGV[1], offset)
  local fit = tries
  if hits > 0 and counts == 2 then
    local report = { at = now, hits = -tries * hits, floor = 0, unused = 0, rejected_at = -1 }
    for j = 1, counted do
      tiers[j].kind.report(tiers[j], report)
    end
  elseif hits > 0 then
    fit = math.max(0, math.floor(room(tries * hits) / hits))
    take((counts > 0 and tries or fit) * hits)
    if fit < tries then
      rejected[#rejected + 1] = hits
      if counts == 0 and not before then reject(hits) end
    end
  end
  taken[i + 1] = whole(fit)
end
if before and #rejected > 0 then
  tiers = before
  for _, hits in ipairs(rejected) do
    reject(hits)
  end
end

local held = want > 0 and room(want) or 0
if held < least then held = 0 end
if held > 0 then take(held, hold) end
taken[1] = (own + missing > 0 and whole(own) .. ',' .. whole(missing) .. '=' or '') .. whole(held)

local reply = { table.concat(taken, ','), whole(now) }
for i, tier in ipairs(tiers) do
  if not tier.kind.has_writer then
    tier.kind.save(tier)
  elseif tier.changed then
    tier.kind.save(tier, decides and tier.kind.encode(tier) or tier.told)
  end
  if i <= counted then reply[i + 2] = tier.told end
end
return table.concat(reply, '|')
