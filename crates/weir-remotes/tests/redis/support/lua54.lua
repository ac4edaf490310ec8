-- Runs weir's scripts in Lua 5.4, with what they use of Redis. Reads `text keys… arguments…` as Redis' protocol, asks
-- for commands with a line `call`, and ends with a line `reply` and the reply.

local function write_command(arguments)
  io.stdout:write('call\n*', arguments.n, '\r\n')
  for i = 1, arguments.n do
    local argument = arguments[i]
    -- Redis writes 3, where others may write 3.0
    if math.type(argument) == 'float' then error('a float as argument ' .. i .. ' of a command', 3) end
    argument = tostring(argument)
    io.stdout:write('$', #argument, '\r\n', argument, '\r\n')
  end
  io.stdout:flush()
end

local function read_line()
  return string.sub(io.stdin:read('L') or os.exit(), 1, -3)
end

local function read()
  local line = read_line()
  local kind, rest = string.sub(line, 1, 1), string.sub(line, 2)
  if kind == '+' then return { ok = rest } end
  if kind == '-' then return { err = rest } end
  if kind == ':' then return tonumber(rest) end
  local size = tonumber(rest)
  if size < 0 then return false end
  if kind == '$' then
    local text = io.stdin:read(size)
    io.stdin:read(2)
    return text
  end
  local list = {}
  for i = 1, size do
    list[i] = read()
  end
  return list
end

local function write(value)
  local out = io.stdout
  if type(value) == 'string' then
    out:write('$', #value, '\r\n', value, '\r\n')
  elseif math.type(value) == 'integer' then
    out:write(':', value, '\r\n')
  elseif type(value) == 'number' then
    -- Redis cuts it to an integer, others reply with a double
    error('a float in the reply')
  elseif not value then
    out:write('$-1\r\n')
  elseif value.err then
    out:write('-', value.err, '\r\n')
  else
    out:write('*', #value, '\r\n')
    for _, one in ipairs(value) do
      write(one)
    end
  end
end

local redis, struct = {}, {}

function redis.call(...)
  write_command(table.pack(...))
  local reply = read()
  if type(reply) == 'table' and reply.err then error(reply.err, 2) end
  return reply
end

function redis.error_reply(text)
  return { err = text }
end

-- Redis' library of this name gives every number as a float.
function struct.unpack(format, text, offset)
  format = string.gsub(format, 's', 'z')
  local values = table.pack(string.unpack(format, text, offset))
  for i = 1, values.n - 1 do
    if math.type(values[i]) == 'integer' then values[i] = values[i] + 0.0 end
  end
  return table.unpack(values, 1, values.n)
end

-- Returns the globals of a script. Others, such as those of Lua 5.1 alone, are errors, also to read.
local function environment(keys, arguments)
  local globals = {
    KEYS = keys, ARGV = arguments, redis = redis, struct = struct, string = string, table = table, math = math,
    ipairs = ipairs, next = next, pairs = pairs, tonumber = tonumber, tostring = tostring, type = type,
  }
  local function unknown(_, name)
    error('there is no global variable ' .. name, 2)
  end
  return setmetatable(globals, { __index = unknown, __newindex = unknown })
end

while true do
  local command = read()
  local keys = table.move(command, 3, 2 + tonumber(command[2]), 1, {})
  local arguments = table.move(command, 3 + #keys, #command, 1, {})
  local script, problem = load(command[1], '=script', 't', environment(keys, arguments))
  local is_done, value = nil, problem
  if script then is_done, value = pcall(script) end
  io.stdout:write('reply\n')
  write(is_done and value or { err = 'ERR ' .. tostring(value) })
  io.stdout:flush()
end
