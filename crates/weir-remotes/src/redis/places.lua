-- Keeps the places of one counter: the names of its requests in flight.
--
-- KEYS  the places: a sorted set by the millisecond of their start; the marks: a sorted set of names that have ended, by
--       the millisecond of their end, with a half if the name was found; a hash of the hits that names have reserved
-- ARGV  the operation; the time in microseconds, empty in production, where the server's clock is used; the age in
--       milliseconds at which a place is given up; the milliseconds for which the places, and the marks, stay; for how
--       many of them a mark counts, and the most marks; the most places with hits that are given up at once; the number
--       of names; two numbers of the operation; the names, without flags; and, if any reserves hits, the hits of each
--       take: the most places, and the microsecond beyond which nothing is taken
--       end: how many of the names are marked, the first ones; and how many of the newest places end after them, and are
--       marked, too
--       add: beyond how many places the oldest are given up
-- Returns the time in microseconds; how many of the names were taken, had a place, or were added; the places; and the
-- places that were given up; if hits are reserved, also what ended, and what was given up: names and their hits in turn.
-- weir-coordinate/simulated/places.rs does the same.

-- what Lua 5.1 has under the other name, for Lua 5.4: a global variable that does not exist is an error
local redis_call, unpack = redis.call, table.unpack or unpack

local places, marks, reserved = KEYS[1], KEYS[2], KEYS[3]
local op, micros = ARGV[1], tonumber(ARGV[2])
if not micros then
  local time = redis_call('TIME')
  micros = tonumber(time[1]) * 1000000 + tonumber(time[2])
end
local now, age, marked_for = math.floor(micros / 1000), tonumber(ARGV[3]), tonumber(ARGV[6])
local at_once, names, limit, last = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
local first = 12
local reserves = redis_call('HLEN', reserved) > 0
local ended, expired = {}, {}
local done, inserted = 0, 0

local function whole(n)
  return string.format('%.0f', n)
end

local function remove(name, told)
  local hits = reserves and redis_call('HGET', reserved, name)
  if hits then
    redis_call('HDEL', reserved, name)
    told[#told + 1], told[#told + 2] = name, hits
  end
  return redis_call('ZREM', places, name)
end

local function insert(start, i)
  local added, hits = redis_call('ZADD', places, 'NX', whole(start), ARGV[i]), ARGV[i + names]
  inserted = inserted + added
  if added == 1 and hits and hits ~= '0' then
    redis_call('HSET', reserved, ARGV[i], hits)
    reserves = true
  end
  return added
end

local given_up, due = 0, whole(now - age)
if reserves then
  for _, name in ipairs(redis_call('ZRANGE', places, '-inf', due, 'BYSCORE', 'LIMIT', 0, at_once)) do
    given_up = given_up + remove(name, expired)
  end
else
  given_up = redis_call('ZREMRANGEBYSCORE', places, '-inf', due)
end

if op == 'take' then
  if micros <= last then
    local count = redis_call('ZCARD', places)
    for i = first, first + names - 1 do
      if count < limit then
        count = count + insert(now, i)
      elseif not redis_call('ZSCORE', places, ARGV[i]) then
        break
      end
      done = done + 1
    end
  end
elseif op == 'end' then
  local scored, alone = {}, reserves and names or limit
  for i = first, first + alone - 1 do
    local name = ARGV[i]
    local found = remove(name, ended)
    done = done + found
    if i < first + limit then
      scored[#scored + 1], scored[#scored + 2] = whole(now) .. (found == 1 and '.5' or ''), name
    end
  end
  if alone < names then
    done = done + redis_call('ZREM', places, unpack(ARGV, first + alone))
  end
  for _ = 1, last do
    local newest = redis_call('ZRANGE', places, -1, -1)[1]
    if not newest then break end
    local before = #ended
    done = done + remove(newest, ended)
    if #ended == before then
      ended[before + 1], ended[before + 2] = newest, '0'
    end
    scored[#scored + 1], scored[#scored + 2] = whole(now) .. '.5', newest
  end
  if #scored > 0 then
    redis_call('ZREMRANGEBYSCORE', marks, '-inf', whole(now - marked_for) .. '.5')
    redis_call('ZADD', marks, 'NX', unpack(scored))
    redis_call('ZREMRANGEBYRANK', marks, 0, -1 - tonumber(ARGV[7]))
    redis_call('PEXPIRE', marks, ARGV[5])
  end
else
  for i = first, first + names - 1 do
    local name, start, hits = ARGV[i], 0, ARGV[i + names]
    for at = 1, 6 do start = start * 256 + string.byte(name, at) end
    if start > now then start = now end
    local mark = tonumber(redis_call('ZSCORE', marks, name) or 0)
    if math.floor(mark) + marked_for <= now then
      if start + age > now then done = done + insert(start, i) end
    elseif mark == math.floor(mark) and hits and hits ~= '0' then
      redis_call('ZADD', marks, 'XX', whole(mark) .. '.5', name)
      expired[#expired + 1], expired[#expired + 2] = name, hits
    end
  end
  local beyond = math.min(redis_call('ZCARD', places) - limit, at_once)
  if beyond > 0 then
    for _, name in ipairs(redis_call('ZRANGE', places, 0, beyond - 1)) do
      given_up = given_up + remove(name, expired)
    end
  end
end
if inserted > 0 then
  local stay = tonumber(ARGV[4])
  if reserves then
    -- whoever asks once in this time hears what was given up
    stay = stay + age
    redis_call('PEXPIRE', reserved, whole(stay))
  end
  redis_call('PEXPIRE', places, whole(stay))
end
-- in Lua 5.4 a reply must not have doubles; these are none
local reply = { micros, done, redis_call('ZCARD', places), given_up }
if #ended + #expired > 0 then reply[5], reply[6] = ended, expired end
return reply
