-- Keeps the pool of fair shares that instances share: what its members have asked for, and what they were granted.
--
-- KEYS  the cycle before, the cycle that the caller believes to be open, and the one after it, each a hash; the members, a hash
-- ARGV  the operation; the time in microseconds, empty in production, where the server's clock is used; the start and the length of the
--       cycle in microseconds, and its number; the milliseconds that keys outlive their use; the cycles after which a member is
--       forgotten; the places; and what the operation needs
-- Returns `cycle|...`; only the number of the cycle if another one is open.
--
-- A cycle has the field `G`: what was granted to all, what is kept for owners, what was granted from own parts, the step in which the
-- kept part was set, or -1, and whether forgotten members were removed. `=` and a name is what that member has asked for and was
-- granted. The members have, by name, the last and the first cycle with demand. src/store/simulated/pools.rs does the same, and
-- src/limit/share/grant.rs says what is granted.

local redis_call, number = redis.call, tonumber
local op, now = ARGV[1], number(ARGV[2])
if not now then
  local time = redis_call('TIME')
  now = number(time[1]) * 1000000 + number(time[2])
end
local start, length, cycle = number(ARGV[3]), number(ARGV[4]), number(ARGV[5])
local jitter, forget_after, places = number(ARGV[6]), number(ARGV[7]), number(ARGV[8])
local members = KEYS[4]

-- how many cycles the store is ahead of the caller, whose clock may be a little ahead itself
local ahead = math.floor((now - start) / length)
if ahead == -1 and start - now <= math.min(100000, length / 10) then ahead = 0 end
local is_late_in_time = now - start - ahead * length <= length / 10

local function whole(n)
  return string.format('%.0f', n)
end

local function least(a, b)
  if a < b then return a end
  return b
end

local function most(a, b)
  if a > b then return a end
  return b
end

-- the account of a cycle
local function load(key)
  local text = redis_call('HGET', key, 'G')
  if not text then return { total = 0, kept = 0, own = 0, step = -1, cleaned = 0, is_new = true } end
  local total, kept, own, step, cleaned = string.match(text, '^(%d+) (%d+) (%d+) (-?%d+) (%d)$')
  return { total = number(total), kept = number(kept), own = number(own), step = number(step), cleaned = number(cleaned) }
end

local function save(key, account, offset)
  redis_call('HSET', key, 'G', whole(account.total) .. ' ' .. whole(account.kept) .. ' ' .. whole(account.own) .. ' '
    .. whole(account.step) .. ' ' .. whole(account.cleaned))
  if account.is_new then
    -- it is read as the demand of the cycle after it
    local left = (start + (offset + 2) * length - now) / 1000
    redis_call('PEXPIRE', key, whole(math.ceil(most(1, left)) + jitter))
  end
end

-- counts what `name` has asked for and was granted in a cycle; returns the field of its place, and both numbers
local function report(key, offset, account, named, name, asked, granted)
  local k = cycle + offset
  local known = redis_call('HGET', members, name)
  local last, since
  if known then
    last, since = string.match(known, '^(%d+) (%d+)$')
    last, since = number(last), number(since)
    if k - last > forget_after then known = false end
  end
  local has_demand = asked > 0 or granted > 0
  if not known and name ~= 'other' and not (has_demand and (named or redis_call('HLEN', members) < places)) then
    return report(key, offset, account, true, 'other', asked, granted)
  end
  if has_demand and (not known or last < k) then
    if not known then since = k end
    redis_call('HSET', members, name, whole(k) .. ' ' .. whole(since))
    local keep = (forget_after + 1) * length / 1000
    if keep < 4503599627370496 then redis_call('PEXPIRE', members, whole(math.ceil(keep) + jitter)) end
  end
  local field = '=' .. name
  local text = redis_call('HGET', key, field)
  local a, g = 0, 0
  if text then
    a, g = string.match(text, '^(%d+) (%d+)$')
    a, g = number(a), number(g)
  end
  a = least(4294967295, a + asked)
  g = least(4294967295, most(0, g + granted))
  account.total = least(4294967295, most(0, account.total + granted))
  if asked ~= 0 or granted ~= 0 then redis_call('HSET', key, field, whole(a) .. ' ' .. whole(g)) end
  return field, a, g
end

-- reads members from the arguments: whether it is named, its name, and `count` numbers
local function each(from, times, act)
  for i = 0, times - 1 do
    local at = from + 4 * i
    act(ARGV[at] == '1', ARGV[at + 1], number(ARGV[at + 2]), number(ARGV[at + 3]))
  end
end

if op == 'lease' then
  local named, name, asked = ARGV[9] == '1', ARGV[10], number(ARGV[11])
  if ahead == 1 and is_late_in_time and asked > 0 then
    local account = load(KEYS[2])
    report(KEYS[2], 0, account, named, name, asked, 0)
    save(KEYS[2], account, 0)
  end
  if ahead ~= 0 then return whole(cycle + ahead) end
  local account = load(KEYS[2])
  local field, a, g = report(KEYS[2], 0, account, named, name, asked, 0)
  local capacity, own, default, limit = number(ARGV[12]), number(ARGV[13]), number(ARGV[14]), number(ARGV[15])
  local function grant(hits)
    local from_own = least(most(0, own - g), hits)
    account.total, g = account.total + hits, g + hits
    account.kept, account.own = most(0, account.kept - from_own), account.own + from_own
  end
  local tries, fit = {}, true
  for hits in string.gmatch(ARGV[18], '%d+') do
    hits = number(hits)
    local all, after = account.total + hits, g + hits
    local fits = all <= capacity and (after <= own or (all + most(0, account.kept - most(0, own - g)) <= capacity
      and after <= most(default, limit)))
    if fits then grant(hits) else fit = false end
    tries[#tries + 1] = fits and '1' or '0'
  end
  local more = 0
  if fit then
    local left = most(0, capacity - account.total)
    local mine = most(0, own - g)
    local hits = least(number(ARGV[16]), math.floor(least(most(0, limit - g), left) / (2 * number(ARGV[17]))))
    if hits >= 3 then
      more = least(hits, least(left, most(mine, left - most(0, account.kept - mine))))
      more = most(0, more)
      grant(more)
    end
  end
  if a > 0 or g > 0 then redis_call('HSET', KEYS[2], field, whole(a) .. ' ' .. whole(g)) end
  save(KEYS[2], account, 0)
  return whole(cycle) .. '|' .. table.concat(tries) .. '|' .. whole(more) .. '|' .. whole(g) .. '|' .. whole(account.total)
end

if op == 'keep' then
  if ahead ~= 0 then return whole(cycle + ahead) end
  local account, step = load(KEYS[2]), number(ARGV[9])
  if step > account.step then
    account.step = step
    account.kept = most(0, number(ARGV[10]) - most(0, account.own - number(ARGV[11])))
    save(KEYS[2], account, 0)
  end
  return whole(cycle) .. '|'
end

-- an exchange
if ahead ~= 0 and ahead ~= 1 then return { whole(cycle + ahead) } end
local with_demands, reports, late = ARGV[9] == '1', number(ARGV[10]), number(ARGV[11])
local dropped = 0
local function count(offset, times, from, counts)
  if times == 0 then return end
  local key = KEYS[2 + offset]
  local account = load(key)
  each(from, times, function(named, name, asked, granted)
    if counts then
      report(key, offset, account, named, name, asked, granted)
    else
      dropped = dropped + asked
    end
  end)
  if counts then save(key, account, offset) end
end
if ahead == 0 then
  count(-1, late, 12 + 4 * reports, is_late_in_time)
  count(0, reports, 12, true)
else
  -- what was admitted in a cycle that has ended is over
  for i = 0, reports - 1 do ARGV[12 + 4 * i + 3] = '0' end
  count(0, reports, 12, is_late_in_time)
  each(12 + 4 * reports, late, function(_, _, asked) dropped = dropped + asked end)
end
local open = KEYS[2 + ahead]
local account = load(open)
local all = redis_call('HGETALL', members)
if account.cleaned == 0 and not account.is_new then
  for i = 1, #all, 2 do
    local last = number(string.match(all[i + 1], '^%d+'))
    if cycle + ahead - last > forget_after then redis_call('HDEL', members, all[i]) end
  end
  account.cleaned = 1
  save(open, account, ahead)
end
local before = with_demands and redis_call('HGETALL', KEYS[1 + ahead]) or {}
return {
  whole(cycle + ahead), whole(account.total), whole(account.kept), whole(account.own), whole(account.step), whole(dropped), all,
  redis_call('HGETALL', open), before
}
