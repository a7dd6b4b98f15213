-- Facts that all nodes see for a time: see board.go. A kind has three keys in one slot: a hash of id to what is said, and two
-- sorted sets of ids, by when they end and by their last change. The hash's field '' names the board itself: another name
-- means that what it held is gone.
--
-- A value: version, 1 if it was removed, the number of the change (7 bytes), what was posted. Numbers of changes are at least the
-- instant in µs, so that they go on after the loss of the last ones in a failover.

local VERSION = 1
local call, pack, unpack, format, max, ceil
local virtual -- a test gave the instant

-- begin returns the instant of a call. A library is loaded where none of what it sets is defined yet.
local function begin(text)
  call, pack, unpack = redis.call, struct.pack, struct.unpack
  format, max, ceil = string.format, math.max, math.ceil
  virtual = text ~= ''
  if virtual then return tonumber(text) end
  local t = call('TIME')
  return t[1] * 1000000 + t[2]
end

local function drop(keys, id)
  call('HDEL', keys[1], id)
  call('ZREM', keys[2], id)
  call('ZREM', keys[3], id)
end

-- sweep forgets what is over, at most a thousand at a time.
local function sweep(keys, now)
  local over = call('ZRANGE', keys[2], '-inf', format('%d', now), 'BYSCORE', 'LIMIT', 0, 1000)
  for i = 1, #over do drop(keys, over[i]) end
end

local function lastChange(keys)
  local last = call('ZRANGE', keys[3], 0, 0, 'REV', 'WITHSCORES')
  return last[2] and tonumber(last[2]) or 0
end

local function put(keys, id, removed, change, stop, data)
  call('HSET', keys[1], id, pack('<BBI7', VERSION, removed, change) .. data)
  call('ZADD', keys[2], format('%d', stop), id)
  call('ZADD', keys[3], format('%d', change), id)
end

-- keep makes the keys last as long as what they hold.
local function keep(keys)
  local last = call('ZRANGE', keys[2], 0, 0, 'REV', 'WITHSCORES')
  if not last[2] then
    call('DEL', keys[1], keys[2], keys[3])
    return
  end
  if virtual then return end
  for i = 1, 3 do call('PEXPIREAT', keys[i], format('%d', ceil(last[2] / 1000) + 60000)) end
end

-- post. ARGV: the instant, or '' for the server's clock; how many facts there may be; a name for the board if it has none;
-- then for each fact its id, how long it holds in µs, and what it says. It returns how many had to go.
local function post(keys, args)
  local now, most = begin(args[1]), tonumber(args[2])
  sweep(keys, now)
  call('HSETNX', keys[1], '', args[3])
  local change = lastChange(keys)
  for i = 4, #args, 3 do
    change = max(change + 1, now)
    put(keys, args[i], 0, change, now + tonumber(args[i + 1]), args[i + 2])
  end
  local gone = 0
  while call('ZCARD', keys[2]) > most do
    drop(keys, call('ZRANGE', keys[2], 0, 0)[1])
    gone = gone + 1
  end
  keep(keys)
  return gone
end

-- remove. ARGV: the instant or '', then ids. What is removed is kept in mind as long as it would have held. It returns how many
-- there were.
local function remove(keys, args)
  local now, n = begin(args[1]), 0
  sweep(keys, now)
  local change = lastChange(keys)
  for i = 2, #args do
    local value, stop = call('HGET', keys[1], args[i]), call('ZSCORE', keys[2], args[i])
    if value and stop and #value >= 9 and unpack('<B', value, 2) == 0 then
      change = max(change + 1, now)
      put(keys, args[i], 1, change, tonumber(stop), '')
      n = n + 1
    end
  end
  return n
end

-- read. ARGV: the instant or '', the number of a change, how many facts at most. It returns the name of the board, the number of the
-- last change that it tells of, how many it has looked at, and for each that holds: id, time left in µs, age in µs, 1 if
-- removed, what it says.
local function read(keys, args)
  local now = begin(args[1])
  local ids = call('ZRANGE', keys[3], '(' .. args[2], '+inf', 'BYSCORE', 'LIMIT', 0, tonumber(args[3]))
  local out = {call('HGET', keys[1], '') or '', args[2], #ids}
  for i = 1, #ids do
    local value, stop = call('HGET', keys[1], ids[i]), call('ZSCORE', keys[2], ids[i])
    if value and stop and #value >= 9 then
      local version, removed, change = unpack('<BBI7', value)
      out[2] = format('%d', change)
      if version == VERSION and tonumber(stop) > now then
        out[#out + 1] = ids[i]
        out[#out + 1] = format('%d', stop - now)
        out[#out + 1] = format('%d', max(now - change, 0))
        out[#out + 1] = removed
        out[#out + 1] = value:sub(10)
      end
    end
  end
  return out
end

redis.register_function('NAME_post', post)
redis.register_function('NAME_remove', remove)
redis.register_function('NAME_facts', read)
