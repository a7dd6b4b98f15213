-- The memory of the script, on Redis 6, where nothing of a script outlives a call: keys beside the
-- counters, in the same slot. One call writes both, and so a replica has both or neither: a server
-- that takes the place of another has the same memory, with the same name. base is the beginning of
-- their names.

local KEEP = 90000 -- ms for which a lane is kept: more than a node sends a call again (reserve.go)
local UNUSED = 604800000 -- ms for which the rest is kept when no node calls any more: a week
local CHANGED = 60000 -- ms for which a change is kept: more than lies between read and swap (swap.go)

-- adapt returns a redis.call that takes options of Redis 7 on Redis 6.0. Where a time to live
-- stands in place of an instant, a key lives up to 2 ms longer.
local function adapt(run)
  local function ms() return floor(clock() / 1000) end
  return function(command, ...)
    local key, a, b, c = ...
    if command == 'SET' and b == 'PXAT' then
      return run(command, key, a, 'PX', format('%d', max(tonumber(c) - ms() + 1, 1)))
    elseif command == 'PEXPIRETIME' then
      local left = run('PTTL', key)
      return left < 0 and left or ms() + left + 1
    elseif command == 'PEXPIREAT' and b == 'GT' then
      local left = run('PTTL', key)
      if left < 0 or ms() + left >= tonumber(a) then return 0 end
      return run(command, key, a)
    end
    return run(command, ...)
  end
end

-- nameMemory reads the name of the memory, and gives it one.
function nameMemory()
  call = adapt(redis.call)
  local name = call('GET', base .. 'memory')
  memory = tonumber(name or clock() % 4294967295 + 1)
  if not name then call('SET', base .. 'memory', format('%d', memory), 'PX', UNUSED) end
end

function noteChange(key)
  local counter = base .. 'changes'
  local number = call('INCR', counter)
  call('PEXPIRE', counter, UNUSED)
  if number == 1 then -- after FLUSHALL numbers go on rising
    number = floor(clock() / 1000)
    call('SET', counter, format('%d', number), 'PX', UNUSED)
  end
  call('SET', base .. 'change:' .. key, format('%d', number), 'PX', CHANGED)
end

function changedSince(key, number)
  return tonumber(call('GET', base .. 'change:' .. key) or 0) > number
end

-- lastChange writes something, so that a replica refuses read as it refuses functions.
function lastChange()
  call('SET', base .. 'memory', format('%d', memory), 'PX', UNUSED)
  return tonumber(call('GET', base .. 'changes') or 0)
end

-- A lane's value is the last number, and the reply to it; that is missing if the call failed.
function laneOf(lane)
  local v = call('GET', base .. 'lane:' .. lane)
  if not v then return 0, NONE end
  local number = decode('<I7', v)
  if #v == 7 then return number, NONE end
  return number, cmsgpack.unpack(sub(v, 8))
end

function answer(lane, number, f, keys, args)
  local key, head = base .. 'lane:' .. lane, encode('<I7', number)
  local ok, reply = pcall(f, keys, args)
  call('SET', key, ok and head .. cmsgpack.pack(reply) or head, 'PX', KEEP)
  if not ok then error(reply, 0) end
  return reply
end
