-- A dissector for frames of Causeway, for Wireshark and tshark 3.6 or later; see capture.md and link.md.
--
--     tshark -X lua_script:docs/causeway.lua -r FILE -V
--
-- It reads captures of `causeway link capture` (link type USER0), and those of a network: EtherType 0x88B5, and UDP,
-- where frames are known by their header, or by `-d udp.port==PORT,causeway`. Bodies are shown where they are plain:
-- of opened frames, of insecure ones, and of shared memory.

local causeway = Proto("causeway", "Causeway")

local ETHERTYPE = 0x88B5
local VERSION = 1
local HEADER_BYTES, TAG_BYTES, STATUS_BYTES, NODE_BYTES = 64, 16, 32, 20
local SEALED, SHM, INFORMATION, HELLO = 3, 4, 6, 7
local DOMAIN_BITS = 18

local KINDS = { [1] = "initiation", [2] = "response", [3] = "sealed", [4] = "shm", [5] = "cookie",
    [6] = "information", [7] = "hello" }
local RECORDS = {
    [1] = "ack", [0x82] = "stream", [3] = "ping", [4] = "hello", [5] = "hello heard", [9] = "challenge",
    [10] = "challenge heard", [11] = "renew", [12] = "status", [0x8d] = "open", [0x8e] = "opened",
    [0x8f] = "refused", [0x90] = "close", [0x91] = "closed", [18] = "inform", [19] = "informed", [20] = "twin",
    [21] = "notice",
}
local VERDICTS = {
    [1] = "no such function, or no proof", [2] = "in use", [3] = "not allowed", [4] = "another generation",
    [5] = "another number", [6] = "no room", [7] = "managed",
}
local PROTECTIONS = { [0] = "sealed", [1] = "checksum", [2] = "memory", [3] = "opened" }
local TLPS = {
    [0x00] = "MRd32", [0x20] = "MRd64", [0x40] = "MWr32", [0x60] = "MWr64", [0x04] = "CfgRd0", [0x44] = "CfgWr0",
    [0x05] = "CfgRd1", [0x45] = "CfgWr1", [0x0a] = "Cpl", [0x4a] = "CplD",
}
for routing = 0, 7 do
    TLPS[0x30 + routing] = "Msg"
    TLPS[0x70 + routing] = "MsgD"
end
local STATUSES = { [0] = "SC", [1] = "UR", [2] = "RRS", [4] = "CA" }

local fields = {}
local function field(kind, name, title, ...)
    local made = ProtoField[kind]("causeway." .. name, title, ...)
    fields[name] = made
    return made
end

field("uint8", "version", "Version")
field("uint8", "kind", "Kind", base.DEC, KINDS)
field("uint8", "key_id", "Key id")
field("uint8", "route.hops_left", "Hops left")
field("uint8", "route.congestion", "Congestion seen")
field("uint32", "fabric", "Fabric")
field("uint8", "destination.rail", "Destination rail")
field("uint32", "destination.domain", "Destination domain")
field("uint8", "source.rail", "Source rail")
field("uint32", "source.domain", "Source domain")
field("uint16", "group", "Group")
field("uint32", "channel", "Channel of the receiver")
field("uint32", "stream", "Stream")
field("uint64", "loan_generation", "Loan generation")
field("uint64", "incarnation", "Incarnation")
field("uint64", "card_generation", "Card generation")
field("uint64", "packet_number", "Packet number")
field("uint8", "protection", "Protection", base.DEC, PROTECTIONS)
field("bytes", "body", "Body")
field("bytes", "tag", "Tag")
field("uint32", "checksum", "CRC32C", base.HEX)
field("bytes", "handshake.message", "Message of the handshake")
field("bytes", "handshake.mark", "Mark")
field("bytes", "handshake.cookie_mark", "Mark made with a cookie")
field("bytes", "cookie.nonce", "Nonce")
field("bool", "hello.hears", "Something comes by this link", 8, nil, 1)
field("bool", "hello.asks", "Wants to be told the same", 8, nil, 2)
field("uint8", "information.form", "Form")
field("uint8", "information.role", "Role", base.DEC, { [0] = "node", [1] = "switch" })
field("uint16", "information.interval", "Seconds until the next one")
field("bytes", "information.key", "Public key")
field("uint32", "information.base", "First domain")
field("uint32", "information.domains", "Domains")
field("string", "information.name", "Name")
field("uint8", "information.rail", "Rail")
field("bool", "information.up", "Has a carrier")
field("bytes", "information.address", "Address")
field("bytes", "information.gateway", "Port of a switch")
field("string", "information.function", "Function")
field("uint64", "information.bytes", "Bytes")
field("bool", "information.read_only", "Read-only", 8, nil, 1)
field("bool", "information.lent", "Lent", 8, nil, 2)
field("bytes", "information.lent_to", "Lent to")
field("bytes", "information.member", "Shows that it has the group key")
field("bytes", "information.proof", "Proof of the notice")
field("bytes", "information.port", "Takes frames at")
field("bytes", "cookie.sealed", "Sealed cookie")
field("uint64", "status.committed", "Committed below")
field("uint64", "status.posted_headers", "Credits: posted headers")
field("uint64", "status.posted_data", "Credits: posted data (16 bytes)")
field("uint64", "status.non_posted_headers", "Credits: non-posted headers")
field("uint8", "record.type", "Type", base.HEX, RECORDS)
field("uint16", "record.length", "Length")
field("uint32", "record.stream", "Of stream")
field("bytes", "record.rest", "Not known here")
field("uint8", "ack.path", "Path, as the sender of the packets numbers it")
field("uint8", "ack.ranges", "Ranges")
field("uint16", "ack.delay_us", "Delay in microseconds")
field("uint64", "ack.card_generation", "Card generation")
field("uint64", "ack.low", "From packet")
field("uint64", "ack.high", "To packet")
field("uint16", "tlps.count", "TLPs")
field("uint64", "tlps.first", "First number")
field("uint8", "hello.rails", "Rails, as bits", base.HEX)
field("uint32", "hello.edition", "Edition")
field("uint64", "hello_heard.card_generation", "Card generation")
field("uint32", "hello_heard.edition", "Edition")
field("uint64", "challenge", "Challenge", base.HEX)
field("uint64", "challenge_heard", "Challenge heard", base.HEX)
field("uint32", "open.function", "Function")
field("uint64", "open.generation", "Generation")
field("uint32", "open.domain", "Domain")
field("uint16", "open.slot", "Slot")
field("string", "open.host", "Requester of the function")
field("bytes", "open.proof", "Proof")
field("uint64", "opened.tenancy", "Tenancy", base.HEX)
field("string", "opened.requester", "Requester")
field("uint64", "opened.base", "Base", base.HEX)
field("uint8", "refused.verdict", "Verdict", base.DEC, VERDICTS)
field("bytes", "refused.holder", "Holder")
field("string", "refused.name", "Holder's name")
field("uint64", "refused.since_s", "Has it for (s)")
field("uint64", "refused.hold_s", "Kept for (s)")
field("uint64", "inform.bytes", "Bytes")
field("uint8", "inform.kind", "Kind", base.DEC, { [1] = "NVMe controller" })
field("uint8", "inform.flags", "Flags", base.HEX)
field("string", "inform.name", "Name")
field("bytes", "twin.address", "Address")
field("bytes", "notice.node", "Node")
field("uint8", "notice.rail", "Rail")
field("uint8", "notice.cause", "Cause", base.DEC, { [0] = "does not answer", [1] = "no carrier" })
field("uint8", "tlp.type", "Type", base.HEX, TLPS)
field("uint64", "tlp.number", "Number in the stream")
field("uint16", "tlp.length", "Length in dwords")
field("uint8", "tlp.traffic_class", "Traffic class")
field("uint8", "tlp.attributes", "Attributes", base.HEX)
field("bool", "tlp.poisoned", "Poisoned")
field("string", "tlp.requester", "Requester")
field("uint16", "tlp.tag", "Tag", base.HEX)
field("uint8", "tlp.first_be", "First byte enables", base.HEX)
field("uint8", "tlp.last_be", "Last byte enables", base.HEX)
field("uint64", "tlp.address", "Address", base.HEX)
field("string", "tlp.completer", "Completer")
field("uint8", "tlp.status", "Completion status", base.DEC, STATUSES)
field("uint16", "tlp.byte_count", "Byte count")
field("uint8", "tlp.lower_address", "Lower address", base.HEX)
field("string", "tlp.target", "Target")
field("uint16", "tlp.register", "Register", base.HEX)
field("uint8", "tlp.message_code", "Message code", base.HEX)
field("uint8", "tlp.message_routing", "Message routing")
field("bytes", "tlp.payload", "Payload")
field("bytes", "tlp.digest", "Digest")

local list = {}
for _, made in pairs(fields) do
    list[#list + 1] = made
end
causeway.fields = list

local malformed = ProtoExpert.new("causeway.malformed", "Malformed", expert.group.MALFORMED, expert.severity.ERROR)
causeway.experts = { malformed }

-- Bits of a number, without a library for them: not every Lua has the same.
local function bits(value, low, count)
    return math.floor(value / 2 ^ low) % 2 ^ count
end

local function bdf(id)
    return string.format("%02x:%02x.%d", bits(id, 8, 8), bits(id, 3, 5), bits(id, 0, 3))
end

local function is_zero(range)
    for at = 0, range:len() - 1 do
        if range(at, 1):uint() ~= 0 then
            return false
        end
    end
    return true
end

-- Adds little-endian fields that follow each other: name, bytes, name, bytes, ... Returns where the next begins; nil
-- where they are not all there.
local function add_all(tree, tvb, at, ...)
    local parts = { ... }
    for part = 1, #parts, 2 do
        local name, len = parts[part], parts[part + 1]
        if at + len > tvb:len() then
            return nil
        end
        tree:add_le(fields[name], tvb(at, len))
        at = at + len
    end
    return at
end

-- Adds a name that is filled up with zeroes.
local function add_name(tree, name, range)
    tree:add(fields[name], range, range:stringz())
end

local function add_status(tree, tvb, at)
    return add_all(tree, tvb, at, "status.committed", 8, "status.posted_headers", 8, "status.posted_data", 8,
        "status.non_posted_headers", 8)
end

-- How long a TLP is: header, payload, digest; nil for what is of no known kind.
local function tlp_size(first)
    local format, kind = bits(first, 29, 3), bits(first, 24, 8)
    if not TLPS[kind] then
        return nil
    end
    local header = bits(format, 0, 1) == 1 and 16 or 12
    local payload = 0
    if bits(format, 1, 1) == 1 then
        local dwords = bits(first, 0, 10)
        payload = 4 * (dwords == 0 and 1024 or dwords)
    end
    return header, payload, bits(first, 15, 1) == 1 and 4 or 0
end

local function add_request(tree, tvb, tag_high, header)
    local second = tvb(4, 4):uint()
    tree:add(fields["tlp.requester"], tvb(4, 2), bdf(bits(second, 16, 16)))
    tree:add(fields["tlp.tag"], tvb(6, 1), tag_high + bits(second, 8, 8))
    tree:add(fields["tlp.last_be"], tvb(7, 1), bits(second, 4, 4))
    tree:add(fields["tlp.first_be"], tvb(7, 1), bits(second, 0, 4))
    -- Its last two bits are no part of the address, and zero.
    if header == 16 then
        tree:add(fields["tlp.address"], tvb(8, 8))
        return "0x" .. tostring(tvb(8, 8):bytes())
    end
    tree:add(fields["tlp.address"], tvb(8, 4), UInt64(tvb(8, 4):uint(), 0))
    return string.format("0x%x", tvb(8, 4):uint())
end

local function add_config(tree, tvb, tag_high)
    local second, third = tvb(4, 4):uint(), tvb(8, 4):uint()
    tree:add(fields["tlp.requester"], tvb(4, 2), bdf(bits(second, 16, 16)))
    tree:add(fields["tlp.tag"], tvb(6, 1), tag_high + bits(second, 8, 8))
    tree:add(fields["tlp.first_be"], tvb(7, 1), bits(second, 0, 4))
    tree:add(fields["tlp.target"], tvb(8, 2), bdf(bits(third, 16, 16)))
    tree:add(fields["tlp.register"], tvb(10, 2), bits(third, 0, 12))
    return string.format("register 0x%x", bits(third, 0, 12))
end

local function add_completion(tree, tvb, tag_high)
    local second, third = tvb(4, 4):uint(), tvb(8, 4):uint()
    local count, status = bits(second, 0, 12), bits(second, 13, 3)
    tree:add(fields["tlp.completer"], tvb(4, 2), bdf(bits(second, 16, 16)))
    tree:add(fields["tlp.status"], tvb(6, 1), status)
    tree:add(fields["tlp.byte_count"], tvb(6, 2), count == 0 and 4096 or count)
    tree:add(fields["tlp.requester"], tvb(8, 2), bdf(bits(third, 16, 16)))
    tree:add(fields["tlp.tag"], tvb(10, 1), tag_high + bits(third, 8, 8))
    tree:add(fields["tlp.lower_address"], tvb(11, 1), bits(third, 0, 7))
    return STATUSES[status] or "reserved status"
end

local function add_message(tree, tvb, tag_high, kind)
    local second = tvb(4, 4):uint()
    tree:add(fields["tlp.requester"], tvb(4, 2), bdf(bits(second, 16, 16)))
    tree:add(fields["tlp.tag"], tvb(6, 1), tag_high + bits(second, 8, 8))
    tree:add(fields["tlp.message_code"], tvb(7, 1))
    tree:add(fields["tlp.message_routing"], tvb(0, 1), bits(kind, 0, 3))
    return string.format("code 0x%02x", bits(second, 0, 8))
end

-- Adds the TLP at the start of `tvb` (PCIe 6.0 §2.2). Returns its length; nil where that cannot be told.
local function add_tlp(tree, tvb, number)
    if tvb:len() < 12 then
        return nil
    end
    local first = tvb(0, 4):uint()
    local header, payload, digest = tlp_size(first)
    if not header or header + payload + digest > tvb:len() then
        return nil
    end
    local kind, dwords, total = bits(first, 24, 8), bits(first, 0, 10), header + payload + digest
    local tag_high = 512 * bits(first, 23, 1) + 256 * bits(first, 19, 1)
    local sub = tree:add(causeway, tvb(0, total), "TLP")
    sub:add(fields["tlp.number"], number):set_generated()
    sub:add(fields["tlp.type"], tvb(0, 1))
    sub:add(fields["tlp.traffic_class"], tvb(1, 1), bits(first, 20, 3))
    sub:add(fields["tlp.attributes"], tvb(1, 2), 4 * bits(first, 18, 1) + bits(first, 12, 2))
    sub:add(fields["tlp.poisoned"], tvb(2, 1), bits(first, 14, 1) == 1)
    sub:add(fields["tlp.length"], tvb(2, 2), dwords == 0 and kind % 64 ~= 0x0a and kind < 0x30 and 1024 or dwords)
    local what
    if kind % 64 == 0x0a then
        what = add_completion(sub, tvb, tag_high)
    elseif kind % 64 == 0x04 or kind % 64 == 0x05 then
        what = add_config(sub, tvb, tag_high)
    elseif kind % 64 >= 0x30 then
        what = add_message(sub, tvb, tag_high, kind)
    else
        what = add_request(sub, tvb, tag_high, header)
    end
    if payload > 0 then
        sub:add(fields["tlp.payload"], tvb(header, payload))
    end
    if digest > 0 then
        sub:add(fields["tlp.digest"], tvb(header + payload, digest))
    end
    sub:set_text(string.format("TLP %s: %s, %s, %d bytes of payload", tostring(number), TLPS[kind], what, payload))
    return total
end

local function add_tlps(tree, tvb)
    local at = add_all(tree, tvb, 0, "tlps.count", 2, "tlps.first", 8)
    if not at then
        return false
    end
    local number = tvb(2, 8):le_uint64()
    for _ = 1, tvb(0, 2):le_uint() do
        local len = at < tvb:len() and add_tlp(tree, tvb(at):tvb(), number)
        if not len then
            return false
        end
        at, number = at + len, number + 1
    end
    return true
end

local function add_ack(tree, tvb)
    local at = add_all(tree, tvb, 0, "ack.path", 1, "ack.ranges", 1, "ack.delay_us", 2, "ack.card_generation", 8)
    for _ = 1, at and tvb(1, 1):uint() or 0 do
        at = at and add_all(tree, tvb, at, "ack.low", 8, "ack.high", 8)
    end
    return at
end

local function add_open(tree, tvb)
    local at = add_all(tree, tvb, 0, "record.stream", 4, "open.function", 4, "open.generation", 8, "open.domain", 4,
        "open.slot", 2)
    if not at or at + 2 > tvb:len() then
        return nil
    end
    tree:add(fields["open.host"], tvb(at, 2), bdf(tvb(at, 2):le_uint()))
    return add_all(tree, tvb, at + 2, "open.proof", 32)
end

local function add_opened(tree, tvb)
    local at = add_all(tree, tvb, 0, "record.stream", 4, "opened.tenancy", 8)
    if not at or tvb:len() < 22 then
        return false
    end
    tree:add(fields["opened.requester"], tvb(12, 2), bdf(tvb(12, 2):le_uint()))
    return add_all(tree, tvb, 14, "opened.base", 8)
end

local function add_refused(tree, tvb)
    if tvb:len() < 73 then
        return false
    end
    add_all(tree, tvb, 0, "record.stream", 4, "refused.verdict", 1, "refused.holder", 20)
    add_name(tree, "refused.name", tvb(25, 32))
    return add_all(tree, tvb, 57, "refused.since_s", 8, "refused.hold_s", 8)
end

local function add_inform(tree, tvb)
    if tvb:len() < 46 then
        return false
    end
    add_all(tree, tvb, 0, "record.stream", 4, "inform.bytes", 8, "inform.kind", 1, "inform.flags", 1)
    add_name(tree, "inform.name", tvb(14, 32))
    return true
end

local function plain(...)
    local parts = { ... }
    return function(tree, tvb)
        return add_all(tree, tvb, 0, table.unpack(parts))
    end
end

-- What follows type and length of each record. Each returns nil or false where that is malformed.
local PARSERS = {
    [1] = add_ack,
    [0x82] = add_tlps,
    [3] = plain(),
    [4] = plain("hello.rails", 1, "hello.edition", 4),
    [5] = plain("hello_heard.card_generation", 8, "hello_heard.edition", 4),
    [9] = plain("challenge", 8),
    [10] = plain("challenge_heard", 8),
    [11] = plain(),
    [12] = function(tree, tvb)
        local at = add_all(tree, tvb, 0, "record.stream", 4)
        return at and add_status(tree, tvb, at)
    end,
    [0x8d] = add_open,
    [0x8e] = add_opened,
    [0x8f] = add_refused,
    [0x90] = plain("record.stream", 4),
    [0x91] = plain("record.stream", 4),
    [18] = add_inform,
    [19] = plain("record.stream", 4),
    [20] = plain("twin.address", 28),
    [21] = plain("notice.node", 20, "notice.rail", 1, "notice.cause", 1),
}

-- Adds the records of a body from `at` on; returns their names.
local function add_records(tree, tvb, at)
    local names = {}
    while at < tvb:len() do
        local len = at + 3 <= tvb:len() and tvb(at + 1, 2):le_uint()
        if not len or at + 3 + len > tvb:len() then
            tree:add_proto_expert_info(malformed, "a record is longer than what is left")
            break
        end
        local kind = tvb(at, 1):uint()
        local name = RECORDS[kind] or string.format("record 0x%02x", kind)
        names[#names + 1] = name
        local sub = tree:add(causeway, tvb(at, 3 + len), "Record: " .. name)
        sub:add(fields["record.type"], tvb(at, 1))
        sub:add_le(fields["record.length"], tvb(at + 1, 2))
        local parse = PARSERS[kind]
        if not parse then
            if len > 0 then
                sub:add(fields["record.rest"], tvb(at + 3, len))
            end
        elseif len == 0 and kind ~= 3 and kind ~= 11 then
            sub:add_proto_expert_info(malformed, "nothing follows the record's length")
        elseif len > 0 and not parse(sub, tvb(at + 3, len):tvb()) then
            sub:add_proto_expert_info(malformed, "the record does not have what its type says")
        end
        at = at + 3 + len
    end
    return names
end

local function add_body(tree, tvb, stream)
    local at = 0
    if stream ~= 0 then
        if tvb:len() < STATUS_BYTES then
            tree:add_proto_expert_info(malformed, "there is no status of the stream")
            return {}
        end
        add_status(tree:add(causeway, tvb(0, STATUS_BYTES), "Status of the stream"), tvb, 0)
        at = STATUS_BYTES
    end
    return add_records(tree, tvb, at)
end

local function add_handshake(tree, tvb, kind)
    local len = tvb:len()
    local marks = kind == 1 and 2 * TAG_BYTES or TAG_BYTES
    if len < HEADER_BYTES + marks then
        tree:add_proto_expert_info(malformed, "there is no mark")
        return
    end
    if kind == 5 then
        if len == 128 then
            tree:add(fields["cookie.nonce"], tvb(64, 32))
            tree:add(fields["cookie.sealed"], tvb(96, 16))
        end
    elseif len > HEADER_BYTES + marks then
        tree:add(fields["handshake.message"], tvb(HEADER_BYTES, len - HEADER_BYTES - marks))
    end
    tree:add(fields["handshake.mark"], tvb(len - marks, TAG_BYTES))
    if kind == 1 then
        tree:add(fields["handshake.cookie_mark"], tvb(len - TAG_BYTES, TAG_BYTES))
    end
end

-- What a node says of itself: a head, then items of tag, length and value. Those of unknown tags are left out.
local function add_information(tree, tvb)
    local last = tvb:len() - TAG_BYTES
    if last < HEADER_BYTES + 76 then
        tree:add_proto_expert_info(malformed, "there is no room for what a node says of itself")
        return
    end
    add_all(tree, tvb, HEADER_BYTES, "information.form", 1, "information.role", 1, "information.interval", 2,
        "information.key", 32, "information.base", 4, "information.domains", 4)
    add_name(tree, "information.name", tvb(HEADER_BYTES + 44, 32))
    local at = HEADER_BYTES + 76
    while at + 2 <= last do
        local what, len = tvb(at, 1):uint(), tvb(at + 1, 1):uint()
        at = at + 2
        if at + len > last then
            tree:add_proto_expert_info(malformed, "an item is longer than the frame")
            return
        end
        if what == 1 and len == 58 then
            add_all(tree, tvb, at, "information.rail", 1, "information.up", 1, "information.address", 28,
                "information.gateway", 28)
        elseif what == 2 and len == 41 + NODE_BYTES then
            add_name(tree, "information.function", tvb(at, 32))
            add_all(tree, tvb, at + 32, "information.bytes", 8)
            tree:add(fields["information.read_only"], tvb(at + 40, 1))
            tree:add(fields["information.lent"], tvb(at + 40, 1))
            tree:add(fields["information.lent_to"], tvb(at + 41, NODE_BYTES))
        elseif what == 3 and len == TAG_BYTES then
            add_all(tree, tvb, at, "information.member", TAG_BYTES)
        elseif what == 4 and len == NODE_BYTES + 2 + TAG_BYTES then
            add_all(tree, tvb, at, "notice.node", NODE_BYTES, "notice.rail", 1, "notice.cause", 1,
                "information.proof", TAG_BYTES)
        elseif what == 5 and len == 28 then
            add_all(tree, tvb, at, "information.port", 28)
        end
        at = at + len
    end
end

local function add_prefix(tree, name, range)
    local value = range:le_uint()
    local rail, domain = bits(value, DOMAIN_BITS, 2), bits(value, 0, DOMAIN_BITS)
    tree:add(fields[name .. ".rail"], range, rail)
    tree:add(fields[name .. ".domain"], range, domain)
    return string.format("%d/%d", domain, rail)
end

local function add_header(tree, tvb)
    tree:add(fields["version"], tvb(0, 1))
    tree:add(fields["kind"], tvb(1, 1))
    tree:add(fields["key_id"], tvb(2, 1))
    local route = tvb(3, 1):uint()
    tree:add(fields["route.hops_left"], tvb(3, 1), bits(route, 2, 6))
    tree:add(fields["route.congestion"], tvb(3, 1), bits(route, 0, 2))
    tree:add_le(fields["fabric"], tvb(4, 4))
    local to = add_prefix(tree, "destination", tvb(8, 4))
    local from = add_prefix(tree, "source", tvb(12, 4))
    tree:add_le(fields["group"], tvb(16, 2))
    tree:add_le(fields["channel"], tvb(20, 4))
    tree:add_le(fields["stream"], tvb(24, 4))
    add_all(tree, tvb, 32, "loan_generation", 8, "incarnation", 8, "card_generation", 8, "packet_number", 8)
    return from .. " -> " .. to
end

-- How the body is protected: what is opened has a tag of zeroes, and what has a checksum only has that and zeroes.
local function protection(kind, tag)
    if kind == SHM then
        return 2
    end
    if not is_zero(tag(4, 12)) then
        return 0
    end
    return is_zero(tag(0, 4)) and 3 or 1
end

function causeway.dissector(tvb, pinfo, root)
    local len = tvb:len()
    if len < HEADER_BYTES + TAG_BYTES or tvb(0, 1):uint() ~= VERSION then
        return 0
    end
    pinfo.cols.protocol = "Causeway"
    local tree = root:add(causeway, tvb(0, len), "Causeway")
    local kind, stream = tvb(1, 1):uint(), tvb(24, 4):le_uint()
    local way = add_header(tree, tvb)
    local info = string.format("%s %s", KINDS[kind] or "unknown", way)
    if kind == SEALED or kind == SHM then
        local tag = tvb(len - TAG_BYTES, TAG_BYTES)
        local how = protection(kind, tag)
        tree:add(fields["protection"], tag, how)
        info = string.format("%s stream %d #%s", info, stream, tostring(tvb(56, 8):le_uint64()))
        local body_len = len - HEADER_BYTES - TAG_BYTES
        if how == 0 then
            if body_len > 0 then
                tree:add(fields["body"], tvb(HEADER_BYTES, body_len))
            end
        elseif body_len > 0 then
            local names = add_body(tree, tvb(HEADER_BYTES, body_len):tvb(), stream)
            info = string.format("%s [%s]", info, table.concat(names, ", "))
        end
        tree:add(fields["tag"], tag)
        if how == 1 then
            tree:add_le(fields["checksum"], tag(0, 4))
        end
    elseif kind == INFORMATION then
        add_information(tree, tvb)
        tree:add(fields["tag"], tvb(len - TAG_BYTES, TAG_BYTES))
    elseif kind == HELLO and len > HEADER_BYTES + TAG_BYTES then
        tree:add(fields["hello.hears"], tvb(HEADER_BYTES, 1))
        tree:add(fields["hello.asks"], tvb(HEADER_BYTES, 1))
        tree:add(fields["tag"], tvb(len - TAG_BYTES, TAG_BYTES))
    elseif KINDS[kind] then
        add_handshake(tree, tvb, kind)
    else
        tree:add_proto_expert_info(malformed, "no frame is of this kind")
    end
    pinfo.cols.info = info
    return len
end

-- Whether a datagram looks like a frame: version, kind, and all that is always zero.
local function looks_like_one(tvb)
    if tvb:len() < HEADER_BYTES + TAG_BYTES or tvb(0, 1):uint() ~= VERSION or not KINDS[tvb(1, 1):uint()] then
        return false
    end
    local group = tvb(16, 2):le_uint()
    local prefixes = bits(tvb(8, 4):le_uint(), 20, 12) + bits(tvb(12, 4):le_uint(), 20, 12)
    return tvb(4, 4):uint() == 0 and prefixes == 0 and group > 0 and group < 4095 and tvb(18, 2):uint() == 0
        and tvb(28, 4):uint() == 0
end

DissectorTable.get("wtap_encap"):add(wtap.USER0, causeway)
DissectorTable.get("ethertype"):add(ETHERTYPE, causeway)
DissectorTable.get("udp.port"):add_for_decode_as(causeway)
causeway:register_heuristic("udp", function(tvb, pinfo, root)
    return looks_like_one(tvb) and causeway.dissector(tvb, pinfo, root) > 0
end)
