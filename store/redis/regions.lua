-- What other regions told, inside Redis: store.Change.Apply. This text follows that of lease.lua,
-- and is of one piece with it.
--
-- A call makes all of its changes, and moves the position of a log with them, or does nothing at
-- all: first all changes are tried on copies of the values, and if one cannot be made here, none
-- is. Only logs, which are too long to copy, are written in places; they are tried for nothing
-- before.

-- What is known of the values that the call under way reads and writes, by key.
local texts   -- the value; false: there is none
local stood   -- its length before the call; false: there was none
local stops   -- of the values to be written: instants at which their records are fresh, by tag
local still   -- of these: true if none of these instants was another one before, false if one was
local tried   -- of logs: the operand for which they were tried
local found   -- of logs: what that found, until the log is changed

-- textOf returns a value that is read as a whole; nil if it is no string.
local function textOf(key)
  local v = texts[key]
  if v == nil then
    v = try('GET', key)
    if v ~= false and type(v) ~= 'string' then return nil end
    texts[key], stood[key] = v, v and #v
  end
  return v
end

local function note(key, tag, stop)
  local of = stops[key]
  if not of then
    of = {}
    stops[key] = of
  end
  of[tag] = max(of[tag] or 0, stop)
end

-- put puts a state into a value with records: body, or nothing if that is false. stop is the
-- instant at which it is fresh, and keep says that the state before it was fresh at the same one.
local function put(L, key, body, stop, keep)
  local v = texts[key]
  note(key, L.tag, stop)
  local raw, from = false, nil
  if v then raw, from = record(L, v) end
  if not (keep and raw) then
    still[key] = false
  elseif still[key] == nil then
    still[key] = true
  end
  if raw and body and #raw == #body then
    texts[key] = sub(v, 1, from - 1) .. body .. sub(v, from + #body)
    return
  end
  local out, at = {body and L.head .. body or ''}, 1
  while v and at + 5 <= #v do
    local size = byte(v, at + 4)
    if sub(v, at, at + 3) ~= L.tag then out[#out + 1] = sub(v, at, at + 4 + size) end
    at = at + 5 + size
  end
  v = concat(out)
  texts[key] = v ~= '' and v
end

-- flush writes a value that was changed.
local function flush(key, of, compact, counts)
  local v = texts[key]
  if not v then
    if stood[key] then drop(key) end
    return
  end
  if still[key] then
    call('SETRANGE', key, '0', v)
    return
  end
  local stop, at = 0, 1
  for _, each in pairs(of) do stop = max(stop, each) end
  while compact and at + 5 <= #v do
    if not of[sub(v, at, at + 3)] then
      if stood[key] == #v then
        call('SETRANGE', key, '0', v)
        call('PEXPIREAT', key, expiry(stop), 'GT')
        return
      end
      stop = max(stop, 1000 * call('PEXPIRETIME', key))
      break
    end
    at = at + 5 + byte(v, at + 4)
  end
  call('SET', key, v, 'PXAT', expiry(stop))
  if counts and not stood[key] then noteChange(key) end
end

-- hear charges units to a compact state. It returns how many of them there was room for beside what
-- is out, the new state (nil: unchanged, false: fresh), the instant at which that is fresh, and
-- whether it was fresh at that before; nil if the node must do it.
local function hear(L, raw, units, out)
  local F = like(L, 'hearing')
  F.cost, F.limit, F.limitLevel = 1, L.hard, L.capLevel and L.hard * L.token
  local left, x, y, z, u = L.admit(F, raw, MAXINT)
  if not left then return nil end
  left = min(units, max(0, left - out))
  F.cost = units
  if not L.capLevel then return left, L.apply(F, 1, x, y, z, u) end
  if L.scale == go.intervalScale then
    local missing = min(y + units, L.cap)
    if missing <= 0 then return left, nil end
    F.cost = missing - y
    return left, L.apply(F, 1, x, y)
  end
  local level = min(y + min(units, L.cap) * L.token, L.capLevel)
  return left, level > 0 and encode(go.bucketFormat, x, level, L.scale), bucketFreshAt(L, x, level)
end

-- giveBack gives units back to a compact state; it returns what hear does, but for the first value.
local function giveBack(L, raw, units, out)
  local F = like(L, 'hearing')
  F.cost = units
  local g, x, y, z, u = L.admit(F, raw, 1)
  if not g then return false end
  if not raw then return true, nil end
  local body, stop, keep = L.apply(F, 1, x, y, z, u)
  if L.first and body == false and out > 0 then
    return true, encode(go.countFormat, x, 1), z -- see chargeLent
  end
  return true, body, stop, keep
end

-- compactChange makes a change of a compact state, after the charges that are due. It returns how
-- many units had no room; nil if the node must do it.
local function compactChange(L, key, states, due, out, units)
  local raw, over, body, stop, keep = states, 0, nil, 0, nil
  for i = 1, #due, 2 do
    raw = chargeAt(L, raw, due[i], due[i + 1])
    if raw == nil then return nil end
  end
  if units > 0 then
    local left
    left, body, stop, keep = hear(L, raw, units, out)
    if not left then return nil end
    over = units - left
  else
    local ok
    ok, body, stop, keep = giveBack(L, raw, units, out)
    if not ok then return nil end
  end
  if body == nil and raw ~= states then body = raw end
  if body ~= nil and not (body == false and not states) then
    put(L, key, body, stop or 0, keep and #due == 0)
  end
  return over
end

-- bucketsChange is compactChange for a window of several buckets.
local function bucketsChange(L, key, due, out, units)
  local v = textOf(key) or ''
  local before, over = v, 0
  for i = 1, #due, 2 do
    v = windowsCharge(L, v, due[i], due[i + 1])
    if not v then return nil end
  end
  local used = windowsUsed(L, v)
  if not used or v ~= '' and units < 0 then return nil end
  if units > 0 then
    over = units - min(units, max(0, L.hard - used - out))
    v = windowsCharge(L, v, now, units)
  end
  if v ~= before then
    local start = windowsAt(L, v, now)
    texts[key] = v
    note(key, '', start + (L.buckets + 1) * L.sub)
  end
  return over
end

-- logCopy returns a log's operand for what is neither asked nor refused.
local function logCopy(L)
  local F = like(L, 'hearing')
  F.cost, F.marginCloses, F.till, F.countDenied = -1, false, nil, true
  return F
end

-- logTries reports whether a change of a log can be made here.
local function logTries(L, key, due)
  if tried[key] == L then return true end
  tried[key] = L
  local g, s = logLent(L, logCopy(L), 1, key, due)
  found[key] = s
  return g ~= nil
end

-- logChange makes a change of a log, which has been tried.
local function logChange(L, key, due, out, units)
  local F, s, _ = logCopy(L), found[key], nil
  if s then found[key] = nil else _, s = logLent(L, F, 1, key, due) end
  logWrite(L, key, s)
  F.cost = units
  if units > 0 then
    local left = max(0, L.hard - s.live - out)
    logAppend(F, key, s, units)
    return units - min(units, left)
  end
  F.countDenied = false
  logFinish(F, key, 1, 1, s, 1)
  return 0
end

-- one makes a change of the operand j of S, the keys of which begin at k; of a log only with
-- certain, else it is tried. It returns how many units had no room; nil if the node must do it.
local function one(S, j, keys, k, units, certain)
  local L = S[j]
  local key, raw, over = keys[k + L.at], false, 0
  local v = nil
  if L.size then
    v = texts[key]
    if v then raw = record(L, v) end
  elseif L.buckets then
    v = textOf(key)
    if v == nil then return nil end
  end
  local due, out, R, r, kept, lent = {}, 0, nil, nil, nil, nil
  if L.lends then
    R, kept, lent = S[j - 1], false, keys[k + S[j - 1].at]
    if texts[lent] then kept = record(R, texts[lent]) end
    r = readRecord(L, kept)
    if not r then return nil end
    due = ahead(L, r)
    out = r.older + r.newer
  end
  if not certain then
    if not L.entrySize or tried[key] ~= L then
      if inherits(L, keys, k, v, raw) then return nil end
      if R and R.older > 0 then
        local found = raw
        if not L.size then found = v or not L.buckets and call('EXISTS', key) == 1 end
        if not found and inherits(R, keys, k, texts[lent], kept) then return nil end
      elseif R and R.olderSame and not raw and inherits(R, keys, k, texts[lent], kept) then
        return nil
      end
    end
    if L.entrySize then return logTries(L, key, due) and 0 or nil end
  end
  if L.size then
    over = compactChange(L, key, raw, due, out, units)
  elseif L.buckets then
    over = bucketsChange(L, key, due, out, units)
  else
    over = logChange(L, key, due, out, units)
    if S.swapped then noteChange(key) end
  end
  if over and R then
    local body, stop = writeRecord(L, r)
    if body ~= kept then put(R, lent, body, stop) end
    if body and L.size and texts[key] and stops[key] then
      note(key, L.tag, stop)
      still[key] = false
    end
  end
  return over
end

local NOT_MADE = MAXINT + 1 -- since it was not the time

-- change makes changes. KEYS: that of the position; then those of the operands of each change, in
-- order. ARGV: what once says, '1' if the position counts, where it must be ('': nowhere), where it
-- is to be, how long it is kept (ms), a list, and the shapes, each after what may be used
-- without a soft margin (d). The list has for each change the number of its shape, from 1 (I2), the
-- units (i7), and the instants since and until which it may be made (I7 each).
--
-- The reply is one string: the instant (I7), and
--   '\0' if the position is another one;
--   '\1', and for each change how many units had no room (I7), 2^53 if it was not the time;
--   '\2', and the numbers from 0 of the changes that are left to the node (I4 each): nothing was
--   done.
local function change(keys, args)
  local log, list = args[2] == '1', args[6]
  if log and (call('GET', keys[1]) or '') ~= args[3] then return encode('<I7B', now, 0) end
  texts, stood, stops, still, tried, found, dropped = {}, {}, {}, {}, {}, {}, nil
  local of, main, odd = {}, {}, {}
  for i = 7, #args do
    local S = shape(sub(args[i], 9))
    of[i - 6] = S
    for j = 1, #S do
      if not S[j].record and not S[j].margin then main[i - 6] = j end
    end
    S[main[i - 6]].hard = decode('<d', args[i])
  end
  local n, k, from, want = #list / 23, 2, {}, {}
  local shapeOf, units, made = {}, {}, {}
  for i = 1, n do
    local s, count, since, stop = decode('<I2i7I7I7', list, 23 * i - 22)
    shapeOf[i], units[i], made[i], from[i] = s, count, now >= since and now < stop, k
    local S = of[s]
    for j = 1, made[i] and #S or 0 do
      local key = keys[k + S[j].at]
      if S[j].size and S[j].members and not S[j].margin and texts[key] == nil then
        texts[key] = false
        want[#want + 1] = key
      end
    end
    k = k + S.stride
  end
  for i = 1, #want, BATCH do
    local vals = readValues(want, i, #want)
    for j = 1, #vals do
      local key = want[i + j - 1]
      texts[key], stood[key] = vals[j], vals[j] and #vals[j]
    end
  end
  local overs, counts = {}, {}
  for i = 1, n do
    local S = of[shapeOf[i]]
    if not made[i] then
      overs[i] = NOT_MADE
    elseif units[i] == 0 then
      overs[i] = 0
    elseif S.till and (now < S.from or now >= S.till) then
      odd[#odd + 1] = i
    else
      overs[i] = one(S, main[shapeOf[i]], keys, from[i], units[i], false)
      if not overs[i] then odd[#odd + 1] = i end
    end
  end
  if #odd > 0 then
    local out = {encode('<I7B', now, 2)}
    for i = 1, #odd do out[i + 1] = encode('<I4', odd[i] - 1) end
    return concat(out)
  end
  for i = 1, n do
    local S, j = of[shapeOf[i]], main[shapeOf[i]]
    local L = S[j]
    if made[i] and units[i] ~= 0 then
      if L.entrySize then overs[i] = one(S, j, keys, from[i], units[i], true) end
      if S.swapped then counts[keys[from[i] + L.at]] = true end
    end
  end
  for key, each in pairs(stops) do flush(key, each, each[''] == nil, counts[key]) end
  if dropped then forgetDropped() end
  if log then call('SET', keys[1], args[4], 'PX', args[5]) end
  local out = {encode('<I7B', now, 1)}
  for i = 1, n do out[i + 1] = encode('<I7', overs[i]) end
  return concat(out)
end

-- lead makes a holder the one that does a task, and returns 1 if it is the one. KEYS: one. ARGV:
-- the instant or '', the holder, the term in µs; 0: the holder leaves.
local function lead(keys, args)
  begin(args[1])
  local key, holder, term = keys[1], args[2], tonumber(args[3])
  local v = call('GET', key)
  if v and #v >= 7 and sub(v, 8) ~= holder and decode('<I7', v) > now then return 0 end
  if term == 0 then
    if v then call('DEL', key) end
    return 0
  end
  local stop = min(now + term, MAXINT)
  call('SET', key, encode('<I7', stop) .. holder, 'PXAT', expiry(stop))
  return 1
end

redis.register_function('NAME_change', once(change))
redis.register_function('NAME_lead', lead)
