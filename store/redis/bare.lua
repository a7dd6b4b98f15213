-- Limits that lend, of keys of which nothing is lent: that is what nearly all decisions find, since
-- others borrow of few keys, and not always. This text follows that of weir.lua, and is of one
-- piece with it.
--
-- Where nothing is told and wanted, the reply has for each decision a byte that says how it goes
-- on:
--   go.replyWhole    all operands, the records of what is lent among them: lease.lua decided
--   go.replyBare     all operands but the records, of which there are none
--   go.replyValue    the value that holds the states of these operands, in their order, and nothing
--                    else
--   go.replyNone     nothing: there is no such value

-- Two limits of one kind are decided as one where both states are missing, or count as they are and
-- were kept under the present scale: that is what nearly all decisions over regions find, and each
-- state by itself would cost as much again in Lua. Such a function returns one that decides m equal
-- requests on a value (false: there is none): it returns how many are admitted, what to write, and
-- the instant at which that is fresh. Without an instant it goes into the value from its second
-- number on. It returns nil where decidePair is to go the long way, which comes to the same. What
-- depends on the instant alone is worked out once in a call.

local function fixedBoth(K, L)
  local c, mostK, mostL = K.cost, K.limit, L.limit
  local at, headK, headL, stop
  return function(v, m)
    if at ~= now then
      at = now
      local k, l = now - now % K.window, now - now % L.window
      headK, headL = K.head .. encode('<I7', k), L.head .. encode('<I7', l)
      stop = max(k + K.window, l + L.window)
    end
    local h, b, i, e = headK, 0, headL, 0
    if v then
      h, b, i, e = decode('<c12I7c12I7', v)
      if h ~= headK or i ~= headL then return nil end
    end
    local left = mostK - b
    if left > mostL - e then left = mostL - e end
    if m * c > left then
      if left < c then return 0 end
      m = floor(left / c)
    end
    b, e = b + m * c, e + m * c
    if v then return m, encode('<I7c12I7', b, headL, e) end
    return m, encode('<c12I7c12I7', headK, b, headL, e), stop
  end
end

local function windowBoth(K, L)
  local c, mostK, mostL = K.cost, K.limit, L.limit
  -- Neither is above MAXCOUNT: algo makes no such limit. So no count that is admitted is either.
  local at, headK, headL, restK, restL, stop
  return function(v, m)
    if at ~= now then
      at = now
      local k, l = now % K.sub, now % L.sub
      headK, headL = K.head .. encode('<I7', now - k), L.head .. encode('<I7', now - l)
      restK, restL = K.subUnits - floor(k / K.unit), L.subUnits - floor(l / L.unit)
      stop = now + max(2 * K.sub - k, 2 * L.sub - l)
    end
    local h, b, p, i, e, q = headK, 0, 0, headL, 0, 0
    if v then
      h, b, p, i, e, q = decode('<c12I4I4c12I4I4', v)
      if h ~= headK or i ~= headL or b == 0 or e == 0 then return nil end
    end
    local left, other = mostK - b, mostL - e
    if p > 0 then left = left - previousShare(K, p, restK) end
    if q > 0 then other = other - previousShare(L, q, restL) end
    if left > other then left = other end
    if m * c > left then
      if left < c then return 0 end
      m = floor(left / c)
    end
    b, e = b + m * c, e + m * c
    if v then return m, encode('<I4I4c12I4I4', b, p, headL, e, q) end
    return m, encode('<c12I4I4c12I4I4', headK, b, 0, headL, e, 0), stop
  end
end

local function bucketBoth(K, L)
  local unit, rateK, rateL = K.unit, K.rate, L.rate
  if L.unit ~= unit or rateK == 0 or rateL == 0 or K.slower or L.slower
    or K.maxDelay >= 0 or L.maxDelay >= 0 then
    return nil
  end
  local mostK, eachK = K.capLevel, K.cost * K.token -- no margin of such a limit closes
  local mostL, eachL = L.capLevel, L.cost * L.token
  local startK, scaleL, between = K.head, L.scale, encode('<I4', K.scale) .. L.head
  local at, t, headK, headL
  return function(v, m)
    if at ~= now then
      at, t = now, (now - now % unit) / unit
      local text = encode('<I7', t)
      headK, headL = startK .. text, between .. text
    end
    local b, e = 0, 0
    if v then
      local h, a, i, d, s
      h, a, b, i, d, e, s = decode('<c5I7I7c9I7I7I4', v)
      if h ~= startK or i ~= between or s ~= scaleL or a > t or d > t then return nil end
      if b > mostK then b = mostK end
      if e > mostL then e = mostL end
      b, e = b - (t - a) * rateK, e - (t - d) * rateL
      if b < 0 then b = 0 end
      if e < 0 then e = 0 end
    end
    if m * eachK > mostK - b then m = floor((mostK - b) / eachK) end
    if m * eachL > mostL - e then m = floor((mostL - e) / eachL) end
    if m <= 0 then return 0 end
    b, e = b + m * eachK, e + m * eachL
    local x, y = b / rateK, e / rateL
    if x < y then x = y end
    return m, encode('<c12I7c16I7I4', headK, b, headL, e, scaleL), (t + ceil(x)) * unit
  end
end

local bothOf = {
  [fixedWeigh] = fixedBoth, [windowWeigh] = windowBoth, [bucketWeigh] = bucketBoth,
}

-- plain prepares a shape for decideOnly or decidePair, if all of its decisions can be made there:
-- at most two states, in one value that was never another one, of limits that count only what they
-- admit, and must all admit. whole is the format of such a value, tail that without the first head
-- and number, size its length, three says that a state has three numbers and not two, and both
-- decides two states as one.
local function plain(B)
  local size = 0
  for j = 1, #B do
    local L = B[j]
    if not L.weigh or L.mode ~= go.modeEnforce or L.cost <= 0 or L.room or L.countDenied
      or L.hasMargin or #L.format ~= #B[1].format then
      return
    end
    size = size + 5 + L.size
  end
  if #B > 2 or B.stride ~= 1 or B[#B].at ~= 0 then return end
  B.plain, B.size, B.three, B.whole = true, size, #B[1].format == #go.bucketFormat, B[1].whole
  if #B == 2 then B.whole = B.whole .. sub(B[2].whole, 2) end
  B.tail = '<' .. sub(B.whole, 6)
  local K, L = B[1], B[#B]
  local both = #B == 2 and K.weigh == L.weigh and K.cost == L.cost and bothOf[K.weigh]
  if both then B.both = both(K, L) end
end

-- idleAdmit is admit of a limit that is not in force.
local function idleAdmit(L, raw, m)
  local g, x, y, z, u = compactAdmit(L, raw, m)
  return g and m, x, y, z, u
end

-- bareOf returns the shape S without the records of what is lent; false if these do not all lie
-- beside their states. Its operands have two more fields: lent, the tag of the record, and carries,
-- the record may be kept under an older identity.
local function bareOf(S)
  local B = {}
  for j = 1, #S do
    local L, R = S[j], S[j - 1]
    if not L.record then
      if L.lends and not (L.size and L.at == R.at) then return false end
      local F = {}
      for field, value in pairs(L) do F[field] = value end
      if L.lends then
        F.lent, F.carries = R.tag, R.older > 0 or R.olderSame
      end
      if L.idle then F.admit = idleAdmit end
      B[#B + 1] = F
      if L.size then
        F.joinedTo, F.members = nil, nil
        for i = 1, #B - 1 do
          if B[i].members and B[i].at == F.at then F.joinedTo = i end
        end
        local head = F.joinedTo and B[F.joinedTo] or F
        head.members = head.members or {}
        head.members[#head.members + 1] = #B
      elseif L.members then
        F.members = {#B}
      end
    end
  end
  B.stride, B.compact, B.simple, B.swapped = S.stride, S.compact, S.simple, S.swapped
  plain(B)
  return B
end

-- decideOnly is decideOne where an operand lends.
local function decideOnly(S, B, keys, from, count, list, merged, at, out)
  local L, size, whole, tail = B[1], B.size, B.whole, B.tail
  local weigh, charge, head, mends = L.weigh, L.charge, L.head, L.mends
  local granted, o, m, vals, base = 0, #out, 1, nil, 0
  for i = 1, count do
    if (i - 1) % BATCH == 0 then
      vals, base = readValues(keys, from + i - 1, from + count - 1), from + i - 2
    end
    if merged then m = decode('<I4', list, 2 + 4 * i) end
    local key, g, x, y, z, u = keys[from + i - 1], nil, nil, nil, nil, nil
    local v = vals[from + i - 1 - base]
    if not v then
      g, x, y, z, u = weigh(L, m)
    elseif #v == size then
      local h, a, b, c = decode(whole, v)
      if h == head then g, x, y, z, u = weigh(L, m, a, b, c) end
    end
    if not g or g == 0 and mends and z then
      local k = from + i - 1
      local n = decideLeased(S, keys, k, i, i, list, merged, nil, false, at, out, vals, base)
      granted, o = granted + n, #out
    else
      if v then
        out[o + 1], out[o + 2] = go.replyValue, v
        o = o + 2
      else
        o = o + 1
        out[o] = go.replyNone
      end
      if g > 0 then
        granted = granted + g
        local stop, keep, a, b, c = charge(L, g, x, y, z, u)
        if keep and v then
          call('SETRANGE', key, '12', encode(tail, b, c))
        else
          call('SET', key, encode(whole, head, a, b, c), 'PXAT', expiry(stop))
          if not v then noteChange(key) end
        end
      end
    end
  end
  return granted
end

-- decidePair is decideOnly with two states in a value.
local function decidePair(S, B, keys, from, count, list, merged, at, out)
  local K, L, size, whole, tail, three = B[1], B[2], B.size, B.whole, B.tail, B.three
  local both = B.both
  local weighK, chargeK, headK = K.weigh, K.charge, K.head
  local weighL, chargeL, headL = L.weigh, L.charge, L.head
  local mends = K.mends or L.mends
  local granted, o, m, vals, base = 0, #out, 1, nil, 0
  for i = 1, count do
    if (i - 1) % BATCH == 0 then
      vals, base = readValues(keys, from + i - 1, from + count - 1), from + i - 2
    end
    if merged then m = decode('<I4', list, 2 + 4 * i) end
    local key, v = keys[from + i - 1], vals[from + i - 1 - base]
    local g, text, stop
    if both and (not v or #v == size) then g, text, stop = both(v, m) end
    if g then
      if v then
        out[o + 1], out[o + 2] = go.replyValue, v
        o = o + 2
      else
        o = o + 1
        out[o] = go.replyNone
      end
      if stop then
        call('SET', key, text, 'PXAT', expiry(stop))
        if not v then noteChange(key) end
      elseif text then
        call('SETRANGE', key, '12', text)
      end
      granted = granted + g
    else
      local x, y, z, u, h, s, t, w, r
      if not v then
        g, x, y, z, u = weighK(K, m)
        h, s, t, w, r = weighL(L, m)
      elseif #v == size then
        local p, q, a, b, c, d, e, f
        if three then
          p, a, b, c, q, d, e, f = decode(whole, v)
        else
          p, a, b, q, d, e = decode(whole, v)
        end
        if p == headK and q == headL then
          g, x, y, z, u = weighK(K, m, a, b, c)
          h, s, t, w, r = weighL(L, m, d, e, f)
        end
      end
      if g and h and h < g then g = h end
      if not (g and h) or g == 0 and mends and (z or w) then
        local k = from + i - 1
        local n = decideLeased(S, keys, k, i, i, list, merged, nil, false, at, out, vals, base)
        granted, o = granted + n, #out
      else
        if v then
          out[o + 1], out[o + 2] = go.replyValue, v
          o = o + 2
        else
          o = o + 1
          out[o] = go.replyNone
        end
        if g > 0 then
          granted = granted + g
          local keep, a, b, c
          stop, keep, a, b, c = chargeK(K, g, x, y, z, u)
          local last, keeps, d, e, f = chargeL(L, g, s, t, w, r)
          if keep and keeps and v then
            if three then
              text = encode(tail, b, c, headL, d, e, f)
            else
              text = encode(tail, b, headL, d, e)
            end
            call('SETRANGE', key, '12', text)
          else
            if three then
              text = encode(whole, headK, a, b, c, headL, d, e, f)
            else
              text = encode(whole, headK, a, b, headL, d, e)
            end
            if last > stop then stop = last end
            call('SET', key, text, 'PXAT', expiry(stop))
            if not v then noteChange(key) end
          end
        end
      end
    end
  end
  return granted
end

-- decideBare makes count decisions of a shape that lends, of which nothing is told and wanted. It
-- returns how many requests were admitted.
function decideBare(S, keys, from, count, list, merged, repeats, at, out)
  local B = S.bare
  if B == nil then
    B = bareOf(S)
    S.bare = B
  end
  if not B then
    local cur = repeats and {} or nil
    return (decideLeased(S, keys, from, 1, count, list, merged, cur, false, at, out))
  elseif not B.plain or repeats then
    return (decideAll(B, keys, from, count, list, merged, repeats, at, out, S))
  elseif #B == 1 then
    return decideOnly(S, B, keys, from, count, list, merged, at, out)
  end
  return decidePair(S, B, keys, from, count, list, merged, at, out)
end
