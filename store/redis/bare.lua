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

-- plain prepares a shape for decideOnly or decidePair, if all of its decisions can be made there:
-- at most two states, in one value that was never another one, of limits that count only what they
-- admit, and must all admit. whole is the format of such a value, tail that without the first head
-- and number, size its length, and three says that a state has three numbers and not two.
local function plain(B)
  local size = 0
  for j = 1, #B do
    local L = B[j]
    if not L.weigh or L.mode ~= go.modeEnforce or L.cost <= 0 or L.countDenied or L.hasMargin
      or #L.format ~= #B[1].format then
      return
    end
    size = size + 5 + L.size
  end
  if #B > 2 or B.stride ~= 1 or B[#B].at ~= 0 then return end
  B.plain, B.size, B.three, B.whole = true, size, #B[1].format == #go.bucketFormat, B[1].whole
  if #B == 2 then B.whole = B.whole .. sub(B[2].whole, 2) end
  B.tail = '<' .. sub(B.whole, 6)
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
    local g, x, y, z, u, h, s, t, w, r
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
        local stop, keep, a, b, c = chargeK(K, g, x, y, z, u)
        local last, keeps, d, e, f = chargeL(L, g, s, t, w, r)
        if keep and keeps and v then
          if three then
            v = encode(tail, b, c, headL, d, e, f)
          else
            v = encode(tail, b, headL, d, e)
          end
          call('SETRANGE', key, '12', v)
        else
          local text
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
