-- Registers an instance and counts the registered ones: a sorted set of instances by the millisecond of their expiry.
--
-- KEYS  the set
-- ARGV  the time in microseconds, empty in production, where the server's clock is used; the name of the instance; its time
--       to live in milliseconds, 0 to deregister
-- Returns the number of registered instances.

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end
now = math.floor(now / 1000)
local instance, ttl = ARGV[2], tonumber(ARGV[3])

redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
if ttl > 0 then
  redis.call('ZADD', KEYS[1], string.format('%.0f', now + ttl), instance)
else
  redis.call('ZREM', KEYS[1], instance)
end
-- the set expires with its last instance
local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2]
if last then
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.max(1, tonumber(last) - now)))
end
return redis.call('ZCARD', KEYS[1])
