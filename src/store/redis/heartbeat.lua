-- Registers an instance, counts the registered ones, and keeps the epochs of their membership.
--
-- The instances are a sorted set by the millisecond of their expiry. An epoch says who splits limits from an instant on, which is a whole
-- second two to three seconds ahead, so that every instance hears of it by then. It is a sorted set of names with equal scores, so that
-- the rank of a name is its place among them in the order of bytes.
--
-- KEYS  the set of instances; and, to keep epochs: a hash of their seconds ('f': in force, '0' to '3': to come, by the second modulo 4,
--       '1st': the first one ever, negative if an instance knows older ones), the epoch in force, and four epochs to come, by the
--       second modulo 4
-- ARGV  the time in microseconds, empty in production, where the server's clock is used; the name of the instance; its time
--       to live in milliseconds, 0 to deregister; the second of the first epoch of which it was told, empty if it was told of none
-- Returns the number of registered instances and the time in microseconds; and, to keep epochs, the second of the first one ever, negative
-- as above, 0 if there was none; and for the epoch in force and all to come, in their order: the second, the number of members, and the
-- rank of this instance, -1 if it is none of them.

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
local reply = {count, micros}
if #KEYS == 1 then
  return reply
end

-- an epoch outlives an outage in which no heartbeat arrives; that there has been one is remembered for longer than any window
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
