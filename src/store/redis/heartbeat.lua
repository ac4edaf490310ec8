-- Registers an instance, counts the registered ones, and keeps the epochs of their membership.
--
-- The instances are a sorted set by the millisecond of their expiry. An epoch says who splits limits from an instant
-- on, which is a whole second two to three seconds ahead, so that every instance hears of it by then. It is a sorted
-- set of names with equal scores, so that the rank of a name is its place among them in the order of bytes.
--
-- KEYS  the set of instances; and, to keep epochs: a hash of their seconds ('f': in force, '0' to '3': to come, by the
-- second modulo 4,
--       '1st': the first one ever, negative if an instance knows older ones), the epoch in force, four epochs to come, by the
--       second modulo 4, and the parts that follow demand
-- ARGV  the time in microseconds, empty in production, where the server's clock is used; the name of the instance; its
-- time
--       to live in milliseconds, 0 to deregister; the second of the first epoch of which it was told, empty if it was told of none; and for
--       each limit whose parts follow demand: the key of 16 bytes, the limit, the period in milliseconds, the demand, and the acknowledged
--       version
-- Returns the number of registered instances and the time in microseconds; and, to keep epochs, the second of the first
-- one ever, negative as above, 0 if there was none; the parts of limits that do not have even ones, each as key, limit,
-- period, hits and version; and for the epoch in force and all to come, in their order: the second, the number of
-- members, and the rank of this instance, -1 if it is none of them.

-- what Lua 5.1 has under the other name, for Lua 5.4: a global variable that does not exist is an error
local unpack = table.unpack or unpack

local micros = tonumber(ARGV[1])
if not micros then
  local time = redis.call('TIME')
  micros = tonumber(time[1]) * 1000000 + tonumber(time[2])
end
local now = math.floor(micros / 1000)
local instance, ttl, known = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

local changed = redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now)) > 0
if ttl > 0 then
  changed = redis.call('ZADD', KEYS[1], string.format('%.0f', now + ttl), instance) == 1 or changed
else
  changed = redis.call('ZREM', KEYS[1], instance) == 1 or changed
end
-- the set expires with its last instance
local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2]
if last then
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.max(1, tonumber(last) - now)))
end
local count = redis.call('ZCARD', KEYS[1])
-- in Lua 5.4 a reply must not have doubles; this is none
local reply = {count, micros}
if #KEYS == 1 then
  return reply
end

-- an epoch outlives an outage in which no heartbeat arrives; that there has been one is remembered for longer than any
-- window
local KEPT = 60000
local REMEMBERED = 400 * 86400000
local function field(second)
  return string.format('%.0f', second % 4)
end
local function key(second)
  return KEYS[4 + second % 4]
end

local in_force, coming, first = nil, {}, 0
local stored = redis.call('HGETALL', KEYS[2])
for i = 1, #stored, 2 do
  if stored[i] == 'f' then
    in_force = tonumber(stored[i + 1])
  elseif stored[i] == '1st' then
    first = tonumber(stored[i + 1])
  else
    coming[#coming + 1] = tonumber(stored[i + 1])
  end
end
table.sort(coming)

while coming[1] and coming[1] * 1000 <= now do
  local second = table.remove(coming, 1)
  redis.call('DEL', KEYS[3])
  if redis.call('EXISTS', key(second)) == 1 then
    redis.call('RENAME', key(second), KEYS[3])
  end
  redis.call('HDEL', KEYS[2], field(second))
  redis.call('HSET', KEYS[2], 'f', string.format('%.0f', second))
  in_force = second
end
-- nobody is in force, or nobody has come for long
if in_force and redis.call('EXISTS', KEYS[3]) == 0 then
  in_force = nil
end

-- instances of earlier versions come and go without an epoch, and keys may have been evicted
local newest = coming[#coming]
if not changed then
  local members = newest and redis.call('ZCARD', key(newest)) or in_force and redis.call('ZCARD', KEYS[3]) or 0
  changed = members ~= count
end
if changed then
  local second = math.ceil((now + 2000) / 1000)
  -- later ones are of a clock that was set back
  while newest and newest > second do
    redis.call('DEL', key(newest))
    redis.call('HDEL', KEYS[2], field(newest))
    table.remove(coming)
    newest = coming[#coming]
  end
  redis.call('ZUNIONSTORE', key(second), 1, KEYS[1], 'WEIGHTS', 0)
  redis.call('PEXPIRE', key(second), KEPT)
  redis.call('HSET', KEYS[2], field(second), string.format('%.0f', second))
  if newest ~= second then
    coming[#coming + 1] = second
  end
end
if first == 0 and coming[1] then
  first = coming[1]
  redis.call('HSET', KEYS[2], '1st', string.format('%.0f', first))
end
if known and first > 0 and known ~= first then
  first = -first
  redis.call('HSET', KEYS[2], '1st', string.format('%.0f', first))
end
redis.call('PEXPIRE', KEYS[2], REMEMBERED)
redis.call('PEXPIRE', KEYS[3], KEPT)
reply[#reply + 1] = first

-- Limits whose parts follow demand: what limit/demand.rs computes. The hash has the keys of the limits ('keys', 16
-- bytes each), the epoch whose members it has ('epoch'), by key 'limit period free pending demand lack asked_at
-- closes', and by key and name of an instance 'part pending lowered version demand lack'.
local TABLE, MOST, FORGOTTEN, LEAST, TOLERANCE = KEYS[8], 32, 60000, 40, 32
local members = in_force and redis.call('ZCARD', KEYS[3]) or 0
local rank = in_force and redis.call('ZRANK', KEYS[3], instance)
local parts = {}

-- Returns doubles, as Lua 5.1 does: products of Lua 5.4's integers wrap.
local function numbers(text)
  local list = {}
  for number in string.gmatch(text or '', '%d+') do
    list[#list + 1] = tonumber(number) + 0.0
  end
  return list
end
-- Returns a whole number without a fraction in Lua 5.4, for a reply.
local integer = math.floor
local function text(list)
  local texts = {}
  for i = 1, #list do
    texts[i] = string.format('%.0f', list[i])
  end
  return table.concat(texts, ' ')
end
local function even_part(limit, of_rank)
  return math.floor(limit / members) + (of_rank < limit % members and 1 or 0)
end

local known = redis.call('HMGET', TABLE, 'keys', 'epoch')
local keys, changed_keys = {}, false
for key in string.gmatch(known[1] or '', '................') do
  keys[#keys + 1] = key
end

-- what members had who have left is free
if #keys > 0 and known[2] ~= string.format('%.0f', in_force or 0) then
  local all = redis.call('HGETALL', TABLE)
  local globals, gone = {}, {}
  for i = 1, #all, 2 do
    if #all[i] == 16 then
      globals[all[i]] = numbers(all[i + 1])
    end
  end
  for i = 1, #all, 2 do
    local key, name = string.sub(all[i], 1, 16), string.sub(all[i], 17)
    if name ~= '' and not (in_force and redis.call('ZRANK', KEYS[3], name)) then
      local of, had = globals[key], numbers(all[i + 1])
      of[3], of[4], of[5], of[6] = of[3] + had[1] + had[2], of[4] - had[2], of[5] - had[5], of[6] - had[6]
      gone[#gone + 1] = all[i]
    end
  end
  for i = 1, #gone do
    redis.call('HDEL', TABLE, gone[i])
  end
  for key, of in pairs(globals) do
    redis.call('HSET', TABLE, key, text(of))
  end
end

local demands, is_known = {}, {}
for i = 1, #keys do
  is_known[keys[i]] = true
end
for i = 5, #ARGV do
  local key, rest = string.sub(ARGV[i], 1, 16), numbers(string.sub(ARGV[i], 17))
  demands[key] = rest
  -- parts are even as long as nobody has heard of others, so that the members must not be about to change
  if rank and #coming == 0 and not is_known[key] and #keys < MOST and rest[3] > 0 then
    is_known[key], changed_keys = true, true
    keys[#keys + 1] = key
    local names = redis.call('ZRANGE', KEYS[3], 0, -1)
    for of_rank = 0, members - 1 do
      local part = text({even_part(rest[1], of_rank), 0, 0, 0, 0, 0})
      redis.call('HSET', TABLE, key .. names[of_rank + 1], part)
    end
    redis.call('HSET', TABLE, key, text({rest[1], rest[2], 0, 0, 0, 0, now, 0}))
  end
end

local function smoothed(before, asked)
  if asked > before or before - asked >= math.floor(before / 2) then
    return asked
  end
  return math.ceil((before + asked) / 2)
end

table.sort(keys)
local left = {}
for i = 1, #keys do
  local key = keys[i]
  local stored = redis.call('HMGET', TABLE, key, key .. instance)
  local limit, period, free, pending, demand, lack, asked_at, closes = unpack(numbers(stored[1]))
  local is_over = not limit
  if limit and rank then
    local own = stored[2] and numbers(stored[2]) or {0, 0, 0, 0, 0, 0}
    local part, lost_before, lowered, version, demand_before, lack_before = unpack(own)
    local _, _, asked, acknowledged = unpack(demands[key] or {0, 0, 0, 0})
    if acknowledged >= lowered then
      pending, free, lost_before = pending - lost_before, free + lost_before, 0
    end
    local own_demand = smoothed(demand_before, asked)
    demand, lack = demand - demand_before + own_demand, lack - lack_before
    local due = demand > limit and math.ceil(limit * own_demand / demand) or own_demand + math.floor((limit - demand) / members)
    due = math.max(due, math.floor(limit / (LEAST * members)))
    local before, own_lack = part, 0
    local lost
    if closes == 1 then
      lost = math.max(0, part - math.floor(limit / members))
    else
      lost = math.min(math.max(0, part - due), math.max(0, lack - free - pending))
    end
    if lost > 0 then
      part, lost_before, pending = part - lost, lost_before + lost, pending + lost
    elseif asked > part and closes == 0 then
      local owed = math.min(math.max(0, due - part), free)
      local spare = math.max(0, free - owed - lack)
      local more = owed + math.min(spare, math.max(0, asked - part - owed))
      part, free = part + more, free - more
      local missing = math.max(0, due - part)
      if missing * TOLERANCE > due then
        own_lack, lack = missing, lack + missing
      end
    end
    if part ~= before then
      version = math.max(now, version + 1)
    end
    if lost > 0 then
      lowered = version
    end
    redis.call('HSET', TABLE, key .. instance, text({part, lost_before, lowered, version, own_demand, own_lack}))
    if demand > 0 then
      asked_at = now
    end
    if now - asked_at > FORGOTTEN then
      closes = 1
    end
    redis.call('HSET', TABLE, key, text({limit, period, free, pending, demand, lack, asked_at, closes}))
    if closes == 1 and pending == 0 then
      -- over when nobody has more than an even part
      is_over = true
      local names = redis.call('ZRANGE', KEYS[3], 0, -1)
      for j = 1, #names do
        local other = numbers(redis.call('HGET', TABLE, key .. names[j]) or '')
        is_over = is_over and (other[1] or 0) <= math.floor(limit / members)
      end
      if is_over then
        redis.call('HDEL', TABLE, key)
        for j = 1, #names do
          redis.call('HDEL', TABLE, key .. names[j])
        end
      end
    end
    if not is_over then
      parts[#parts + 1] = {key, integer(limit), integer(period), integer(part), integer(version)}
    end
  elseif limit then
    parts[#parts + 1] = {key, integer(limit), integer(period), 0, 0}
  end
  if is_over then
    changed_keys = true
  else
    left[#left + 1] = key
  end
end
if #left > 0 then
  redis.call('HSET', TABLE, 'keys', table.concat(left), 'epoch', string.format('%.0f', in_force or 0))
  redis.call('PEXPIRE', TABLE, KEPT)
elseif #keys > 0 then
  redis.call('DEL', TABLE)
end
reply[#reply + 1] = parts

local function add(second, members)
  reply[#reply + 1] = second
  reply[#reply + 1] = redis.call('ZCARD', members)
  reply[#reply + 1] = redis.call('ZRANK', members, instance) or -1
end
if in_force then
  add(in_force, KEYS[3])
end
for _, second in ipairs(coming) do
  add(second, key(second))
end
return reply
