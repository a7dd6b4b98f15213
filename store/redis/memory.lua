-- The memory of the library, on Redis 7 and newer: variables of the library, which cost no command.
-- It is another one after a restart, in a server that takes the place of another, and after the
-- functions were flushed.

function nameMemory() memory = clock() % 4294967295 + 1 end

-- The number of a change is kept until KEPT other keys got one, at least. lost is the last number
-- that may be missing.
local KEPT = 4096
local changes, changeOf, newKeys, olderChangeOf, olderEnd, lost = 0, {}, 0, {}, 0, 0

function noteChange(key)
  if not changeOf[key] then
    if newKeys >= KEPT then
      olderChangeOf, changeOf, newKeys = changeOf, {}, 0
      lost, olderEnd = olderEnd, changes
    end
    newKeys = newKeys + 1
  end
  changes = changes + 1
  changeOf[key] = changes
end

function changedSince(key, number)
  return max(lost, changeOf[key] or olderChangeOf[key] or 0) > number
end

function lastChange() return changes end

local LANES, KEEP = 4096, 10000000 -- how many are kept; µs for which a reply is kept, at least
-- Of each lane: the last number, the reply to it, and the last number when tidy was called last.
local lanes, due = {}, 0

-- tidy forgets the replies of lanes that were not used for a while, and where there are many, the
-- lanes.
local function tidy()
  due = now + KEEP
  local n = 0
  for _ in pairs(lanes) do n = n + 1 end
  for lane, of in pairs(lanes) do
    if of[3] ~= of[1] then
      of[3] = of[1]
    elseif n > LANES then
      lanes[lane] = nil
    else
      of[2] = NONE
    end
  end
end

function laneOf(lane)
  local l = lanes[lane]
  if not l then
    l = {0, NONE, 0}
    lanes[lane] = l
  end
  return l[1], l[2]
end

function answer(lane, number, f, keys, args)
  local l = lanes[lane]
  if now > due or now < due - KEEP then
    tidy()
    lanes[lane] = l
  end
  l[1], l[2] = number, NONE
  local reply = f(keys, args)
  l[2] = reply
  return reply
end
