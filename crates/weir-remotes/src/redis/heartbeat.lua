-- Registers an instance, and counts the registered ones.
--
-- KEYS  the instances: a sorted set by the millisecond of their expiry
-- ARGV  the time in microseconds, empty in production, where the server's clock is used; the name of the instance; its
--       time to live in milliseconds, 0 to deregister
-- Returns the number of registered instances, the time in microseconds, and the rank of this instance by the order of
-- names, -1 if it is not registered.

local micros = tonumber(ARGV[1])
if not micros then
  local time = redis.call('TIME')
  micros = tonumber(time[1]) * 1000000 + tonumber(time[2])
end
local now = math.floor(micros / 1000)
local instance, ttl = ARGV[2], tonumber(ARGV[3])

redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
if ttl > 0 then
  redis.call('ZADD', KEYS[1], string.format('%.0f', now + ttl), instance)
else
  redis.call('ZREM', KEYS[1], instance)
end
local names, rank = redis.call('ZRANGE', KEYS[1], 0, -1), ttl > 0 and 0 or -1
for _, name in ipairs(names) do
  if ttl > 0 and name < instance then
    rank = rank + 1
  end
end
-- the set expires with its last instance
if #names > 0 then
  local last = redis.call('ZSCORE', KEYS[1], names[#names])
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.max(1, tonumber(last) - now)))
end
-- in Lua 5.4 a reply must not have doubles; this is none
return {#names, micros, rank}
