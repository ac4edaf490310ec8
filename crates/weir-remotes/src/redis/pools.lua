-- Keeps the pool of fair shares that instances share: what its members have asked for, and what they were granted.
--
-- KEYS  the cycle before, and the cycle that the caller believes to be open, each a hash; the members, a hash
-- ARGV  the operation; the time in microseconds, empty in production, where the server's clock is used; the start and
--       the length of the cycle in microseconds, and its number; the milliseconds that keys outlive their use; the
--       cycles after which a member is forgotten; the places; and what the operation needs
-- Returns `cycle|...` or a table; only the number of the cycle if another one is open.
--
-- A cycle has the field `G`: what was granted to all. `=` and a name is what that member has asked for and was granted.
-- The members have, by name, the last and the first cycle with demand. weir-coordinate/simulated/pools.rs does the same, and
-- crates/weir-limit/src/share/grant.rs says what is granted.

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
local members = KEYS[3]

local function whole(n)
  return string.format('%.0f', n)
end

-- how many cycles the store is ahead of the caller, whose clock may be a little ahead itself
local ahead = math.floor((now - start) / length)
if ahead == -1 and start - now <= math.min(100000, length / 10) then ahead = 0 end
if ahead ~= 0 then return whole(cycle + ahead) end

local function least(a, b)
  if a < b then return a end
  return b
end

local function most(a, b)
  if a > b then return a end
  return b
end

-- Returns two numbers with a space between them; nothing if there is no text.
local function two(text)
  if not text then return nil end
  local a, b = string.match(text, '^(%d+) (%d+)$')
  return number(a), number(b)
end

-- Reads the fields of a hash when they are used first, or all at once.
local function hash(key, at_once)
  local known = {}
  if at_once then
    local all = redis_call('HGETALL', key)
    for i = 1, #all, 2 do known[all[i]] = all[i + 1] end
  end
  return { key = key, known = known, changed = {}, get = function(field)
    if known[field] == nil then known[field] = not at_once and redis_call('HGET', key, field) end
    return known[field]
  end }
end

local function put(to, field, text)
  to.known[field], to.changed[field] = text, true
end

-- Writes what has changed, a thousand fields at once. The hash then expires after these milliseconds, if they are given.
local function save(from, expires)
  local fields = {}
  for field in pairs(from.changed) do
    fields[#fields + 1] = field
    fields[#fields + 1] = from.known[field]
  end
  for i = 1, #fields, 2000 do
    redis_call('HSET', from.key, unpack(fields, i, least(#fields, i + 1999)))
  end
  if #fields > 0 and expires and expires < 4503599627370496 then
    redis_call('PEXPIRE', from.key, whole(math.ceil(most(1, expires)) + jitter))
  end
end

local at_once = op == 'exchange'
local before, open, taken = hash(KEYS[1], at_once), hash(KEYS[2], at_once), hash(members, at_once)
local total = number(open.get('G'))
local is_new = not total
total = total or 0

-- Writes everything. A cycle is read as the demand of the one after it.
local function save_all()
  put(open, 'G', whole(total))
  save(before, (start + length - now) / 1000)
  save(open, is_new and (start + 2 * length - now) / 1000)
  save(taken, (forget_after + 1) * length / 1000)
end

-- Returns the field of the place of a member with hits in the cycle of this number. It gets a place of its own if it has
-- demand, and there is one.
local function place(number_of, named, name, has_demand)
  local last, since = two(taken.get(name))
  local is_member = last and number_of - last <= forget_after
  if not is_member then
    taken.count = taken.count or redis_call('HLEN', members)
    if name ~= 'other' and not (has_demand and (named or taken.count < places)) then
      return place(number_of, true, 'other', has_demand)
    end
  end
  if has_demand and (not is_member or last < number_of) then
    if not last then taken.count = taken.count + 1 end
    put(taken, name, whole(number_of) .. ' ' .. whole(is_member and since or number_of))
  end
  return '=' .. name
end

if op == 'lease' then
  local field = place(cycle, ARGV[9] == '1', ARGV[10], true)
  local asked, granted = two(open.get(field))
  asked, granted = asked or 0, granted or 0
  local capacity, own, limit, free = number(ARGV[11]), number(ARGV[12]), number(ARGV[13]), number(ARGV[14])
  local function grant(hits)
    total, granted = total + hits, granted + hits
  end
  local tries, fit = {}, true
  for hits in string.gmatch(ARGV[17], '%d+') do
    hits = number(hits)
    local all, after = total + hits, granted + hits
    local fits = after <= own and all <= capacity or after <= limit and all <= free
    if fits then grant(hits) else fit = false end
    tries[#tries + 1] = fits and '1' or '0'
  end
  local more = 0
  if fit then
    local left = most(0, capacity - total)
    local hits = least(number(ARGV[15]), math.floor(least(most(0, limit - granted), left) / (2 * number(ARGV[16]))))
    if hits >= 3 then
      more = least(hits, least(left, most(0, most(own - granted, free - total))))
      grant(more)
    end
  end
  put(open, field, whole(asked) .. ' ' .. whole(granted))
  save_all()
  return table.concat({ whole(cycle), table.concat(tries), whole(more), whole(granted), whole(total) }, '|')
end

local function add(book, field, asked, granted)
  local a, g = two(book.get(field))
  a, g = least(4294967295, (a or 0) + asked), least(4294967295, most(0, (g or 0) + granted))
  put(book, field, whole(a) .. ' ' .. whole(g))
end

for at = 9, #ARGV, 5 do
  local named, name = ARGV[at] == '1', ARGV[at + 1]
  local late, asked, granted = number(ARGV[at + 2]), number(ARGV[at + 3]), number(ARGV[at + 4])
  if late > 0 then add(before, place(cycle - 1, named, name, true), late, 0) end
  add(open, place(cycle, named, name, asked > 0 or granted > 0), asked, granted)
  total = least(4294967295, most(0, total + granted))
end
if #ARGV > 8 then save_all() end
local rows, last_asked, asked = {}, before.known, open.known
for name, text in pairs(taken.known) do
  if text and cycle - number(string.match(text, '^%d+')) > forget_after then
    redis_call('HDEL', members, name)
  elseif text then
    local field = '=' .. name
    rows[#rows + 1] = name
    rows[#rows + 1] = text .. ' ' .. (last_asked[field] or '0 0') .. ' ' .. (asked[field] or '0 0')
  end
end
return { whole(cycle), whole(total), rows }
