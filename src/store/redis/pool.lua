-- Keeps the pool of fair shares that instances share: what its members have asked for, and what they were granted.
--
-- KEYS  the cycle before, the cycle that the caller believes to be open, and the one after it, each a hash; the
-- members, a hash ARGV  the operation; the time in microseconds, empty in production, where the server's clock is used;
-- the start and the length of the
--       cycle in microseconds, and its number; the milliseconds that keys outlive their use; the cycles after which a member is
--       forgotten; the places; and what the operation needs
-- Returns `cycle|...`; only the number of the cycle if another one is open.
--
-- A cycle has the field `G`: what was granted to all, what is kept for owners, what was granted from own parts, the
-- step in which the kept part was set, or -1, and whether forgotten members were removed. `=` and a name is what that
-- member has asked for and was granted. The members have, by name, the last and the first cycle with demand.
-- src/store/simulated/pools.rs does the same, and src/limit/share/grant.rs says what is granted.

-- what Lua 5.1 has under the other name, for Lua 5.4: a global variable that does not exist is an error
local redis_call, unpack = redis.call, table.unpack or unpack

-- Returns a double, as Lua 5.1 does: products of Lua 5.4's integers wrap.
local function number(text)
  local n = tonumber(text)
  return n and n + 0.0
end

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

-- what was read of members, and what is written of them at the end
local known, changed = {}, {}
-- the members, as soon as that was asked, and those that are not written yet
local taken, added = nil, 0

-- a cycle: its account, and what was read and is written of its members
local function load(offset)
  local book = { key = KEYS[2 + offset], offset = offset, counts = {}, changed = {} }
  local text = redis_call('HGET', book.key, 'G')
  if text then
    local total, kept, own, step, cleaned = string.match(text, '^(%d+) (%d+) (%d+) (-?%d+) (%d)$')
    book.total, book.kept, book.own = number(total), number(kept), number(own)
    book.step, book.cleaned = number(step), number(cleaned)
  else
    book.total, book.kept, book.own, book.step, book.cleaned, book.is_new = 0, 0, 0, -1, 0, true
  end
  return book
end

-- sets fields of a hash, a thousand at once
local function set(key, fields)
  for i = 1, #fields, 2000 do
    redis_call('HSET', key, unpack(fields, i, least(#fields, i + 1999)))
  end
end

local function save(book)
  local fields = { 'G', whole(book.total) .. ' ' .. whole(book.kept) .. ' ' .. whole(book.own) .. ' ' .. whole(book.step)
    .. ' ' .. whole(book.cleaned) }
  for field in pairs(book.changed) do
    fields[#fields + 1] = field
    fields[#fields + 1] = book.counts[field]
  end
  set(book.key, fields)
  if book.is_new then
    -- it is read as the demand of the cycle after it
    local left = (start + (book.offset + 2) * length - now) / 1000
    redis_call('PEXPIRE', book.key, whole(math.ceil(most(1, left)) + jitter))
  end
  fields = {}
  for name in pairs(changed) do
    fields[#fields + 1] = name
    fields[#fields + 1] = known[name]
  end
  if #fields > 0 then
    set(members, fields)
    local keep = (forget_after + 1) * length / 1000
    if keep < 4503599627370496 then redis_call('PEXPIRE', members, whole(math.ceil(keep) + jitter)) end
    changed, added = {}, 0
  end
end

-- counts what `name` has asked for and was granted in a cycle; returns the field of its place, and both numbers
local function report(book, named, name, asked, granted)
  local k = cycle + book.offset
  if known[name] == nil then known[name] = redis_call('HGET', members, name) end
  local is_member, last, since = known[name], nil, nil
  if is_member then
    last, since = string.match(is_member, '^(%d+) (%d+)$')
    last, since = number(last), number(since)
    if k - last > forget_after then is_member = false end
  end
  local has_demand = asked > 0 or granted > 0
  if not is_member and name ~= 'other' then
    taken = taken or redis_call('HLEN', members) + added
    if not (has_demand and (named or taken < places)) then
      return report(book, true, 'other', asked, granted)
    end
  end
  if has_demand and (not is_member or last < k) then
    if not known[name] then
      if taken then taken = taken + 1 else added = added + 1 end
    end
    known[name] = whole(k) .. ' ' .. whole(is_member and since or k)
    changed[name] = true
  end
  local field = '=' .. name
  if book.counts[field] == nil then book.counts[field] = redis_call('HGET', book.key, field) end
  local a, g = 0, 0
  if book.counts[field] then
    a, g = string.match(book.counts[field], '^(%d+) (%d+)$')
    a, g = number(a), number(g)
  end
  a = least(4294967295, a + asked)
  g = least(4294967295, most(0, g + granted))
  book.total = least(4294967295, most(0, book.total + granted))
  if asked ~= 0 or granted ~= 0 then
    book.counts[field] = whole(a) .. ' ' .. whole(g)
    book.changed[field] = true
  end
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
    local book = load(0)
    report(book, named, name, asked, 0)
    save(book)
  end
  if ahead ~= 0 then return whole(cycle + ahead) end
  local book = load(0)
  local field, a, g = report(book, named, name, asked, 0)
  local capacity, own, default, limit = number(ARGV[12]), number(ARGV[13]), number(ARGV[14]), number(ARGV[15])
  local function grant(hits)
    local from_own = least(most(0, own - g), hits)
    book.total, g = book.total + hits, g + hits
    book.kept, book.own = most(0, book.kept - from_own), book.own + from_own
  end
  local tries, fit = {}, true
  for hits in string.gmatch(ARGV[18], '%d+') do
    hits = number(hits)
    local all, after = book.total + hits, g + hits
    local fits = all <= capacity and (after <= own or (all + most(0, book.kept - most(0, own - g)) <= capacity
      and after <= most(default, limit)))
    if fits then grant(hits) else fit = false end
    tries[#tries + 1] = fits and '1' or '0'
  end
  local more = 0
  if fit then
    local left = most(0, capacity - book.total)
    local mine = most(0, own - g)
    local hits = least(number(ARGV[16]), math.floor(least(most(0, limit - g), left) / (2 * number(ARGV[17]))))
    if hits >= 3 then
      more = most(0, least(hits, least(left, most(mine, left - most(0, book.kept - mine)))))
      grant(more)
    end
  end
  if a > 0 or g > 0 then
    book.counts[field] = whole(a) .. ' ' .. whole(g)
    book.changed[field] = true
  end
  save(book)
  return whole(cycle) .. '|' .. table.concat(tries) .. '|' .. whole(more) .. '|' .. whole(g) .. '|' .. whole(book.total)
end

if op == 'keep' then
  if ahead ~= 0 then return whole(cycle + ahead) end
  local book, step = load(0), number(ARGV[9])
  if step > book.step then
    book.step = step
    book.kept = most(0, number(ARGV[10]) - most(0, book.own - number(ARGV[11])))
    save(book)
  end
  return whole(cycle) .. '|'
end

-- an exchange
if ahead ~= 0 and ahead ~= 1 then return { whole(cycle + ahead) } end
local with_demands, reports, late = ARGV[9] == '1', number(ARGV[10]), number(ARGV[11])
local dropped = 0

-- reads what is needed of the members from the argument `from` on, a thousand at once
local function prefetch(book, from, times)
  for first = 0, times - 1, 1000 do
    local names, fields = {}, {}
    for i = first, least(times, first + 1000) - 1 do
      names[#names + 1] = ARGV[from + 4 * i + 1]
      fields[#fields + 1] = '=' .. ARGV[from + 4 * i + 1]
    end
    local texts, counts = redis_call('HMGET', members, unpack(names)), redis_call('HMGET', book.key, unpack(fields))
    for i = 1, #names do
      if known[names[i]] == nil then known[names[i]] = texts[i] end
      book.counts[fields[i]] = counts[i]
    end
  end
end

local function count(offset, times, from, counts, grants)
  if times == 0 then return end
  local book = load(offset)
  if counts then prefetch(book, from, times) end
  each(from, times, function(named, name, asked, granted)
    if counts then
      report(book, named, name, asked, grants and granted or 0)
    else
      dropped = dropped + asked
    end
  end)
  if counts then save(book) end
end
if ahead == 0 then
  count(-1, late, 12 + 4 * reports, is_late_in_time, false)
  count(0, reports, 12, true, true)
else
  -- what was admitted in a cycle that has ended is over
  count(0, reports, 12, is_late_in_time, false)
  each(12 + 4 * reports, late, function(_, _, asked) dropped = dropped + asked end)
end
local book = load(ahead)
local all = redis_call('HGETALL', members)
if book.cleaned == 0 and not book.is_new then
  for i = 1, #all, 2 do
    local last = number(string.match(all[i + 1], '^%d+'))
    if cycle + ahead - last > forget_after then redis_call('HDEL', members, all[i]) end
  end
  book.cleaned = 1
  save(book)
end
local before = with_demands and redis_call('HGETALL', KEYS[1 + ahead]) or {}
return {
  whole(cycle + ahead), whole(book.total), whole(book.kept), whole(book.own), whole(book.step), whole(dropped), all,
  redis_call('HGETALL', book.key), before
}
